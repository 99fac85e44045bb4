"""What users say about loops: the options `tile` and `loop_order`, and the contexts of the same names."""

from __future__ import annotations

import logging

import pytest
import torch

import stepwell
from stepwell.tools.options.options import OptionError, make_options


def blend(x, y):
    z = torch.sin(x) + y.t()
    return z * 2


def blend_marked(x, y):
    with stepwell.tile(8, 24), stepwell.loop_order(1, 0):
        z = torch.sin(x) + y.t()
    return z.exp().sum(1)


def rows(x, y):
    with stepwell.tile(16):
        s = x.sum(1)
    with stepwell.tile(4, 4):
        c = torch.exp(y).sum(1)
    return s, c


def mem_level(function, tmp_path, options=None, **settings):
    """The memory level of the graph that one call compiles; the results are those of eager."""
    torch._dynamo.reset()
    x, y = torch.randn(100, 70), torch.randn(70, 100)
    compiled = torch.compile(function, backend="stepwell", options={**(options or {}), "debug": str(tmp_path)}, fullgraph=True, **settings)
    torch.testing.assert_close(compiled(x, y), function(x, y))
    (file,) = tmp_path.glob("*/3_mem.mlir")
    return file.read_text()


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "stepwell" and r.levelno >= logging.WARNING]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_named_value(tmp_path, caplog, dynamic):
    line = blend.__code__.co_firstlineno + 1
    entry = f"{__file__}:{line}" if dynamic else "add"  # names of FX nodes get other numbers
    text = mem_level(blend, tmp_path, {"tile": {entry: [8, 24]}}, dynamic=dynamic)
    assert "tiles = array<i64: 8, 24>" in text
    assert f'asked = "test_loop_directives.py:{line}"' in text
    assert not warnings(caplog)


def test_a_source_line(tmp_path, caplog):
    line = blend.__code__.co_firstlineno + 1
    text = mem_level(blend, tmp_path, {"tile": {f"test_loop_directives.py:{line}": [16]}, "loop_order": {"mul": [1]}})
    assert "tiles = array<i64: 0, 16>" in text and "fixed = true" in text and "(%j = 70, %i = 100)" in text
    assert not warnings(caplog)


def test_contexts(tmp_path, caplog):
    text = mem_level(blend_marked, tmp_path, {"no_fuse": ["add"]})
    line = blend_marked.__code__.co_firstlineno + 2
    assert "tiles = array<i64: 8, 24>" in text and f'asked = "test_loop_directives.py:{line}"' in text
    assert "= 70, %" in text
    assert not warnings(caplog)


def test_what_makes_no_sense_is_refused_with_the_place(tmp_path, caplog):
    text = mem_level(rows, tmp_path)
    assert "tiles = array<i64: 16>" in text
    line = rows.__code__.co_firstlineno + 4
    assert warnings(caplog) == [
        f"loop-tile 'exp' (asked for at test_loop_directives.py:{line}): refused, sizes: 2 sizes for a nest of 1 loop"
    ]


def test_gradients_are_left_alone(caplog):
    torch._dynamo.reset()
    x, y = torch.randn(100, 70, requires_grad=True), torch.randn(70, 100)
    torch.compile(blend_marked, backend="stepwell")(x, y).sum().backward()
    expected, x.grad = x.grad, None
    blend_marked(x, y).sum().backward()
    torch.testing.assert_close(expected, x.grad)


def test_unknown_names(tmp_path, caplog):
    mem_level(blend, tmp_path, {"tile": {"muk": [8]}, "loop_order": {"nowhere.py:3": [1, 0]}})
    assert warnings(caplog) == [
        "'nowhere.py:3' (in the option loop_order) names no operator of the compiled graph",
        "'muk' (in the option tile) names no operator of the compiled graph; did you mean 'mul'?",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": [8]}, "option 'tile' takes a Mapping, got [8] (list)"),
        ({"tile": {3: [8]}}, "option 'tile': tile takes a dict from names of values or file:line, got 3"),
        ({"tile": {"a": 8}}, "option 'tile': tile of 'a' takes a list of numbers, got 8"),
        ({"tile": {"a": [-8]}}, "option 'tile': tile of 'a' takes numbers from 0, got -8"),
        ({"loop_order": {"a": []}}, "option 'loop_order': loop_order of 'a' takes numbers, got none"),
        ({"loop_order": {"a": ["i"]}}, "option 'loop_order': loop_order of 'a' takes numbers, got 'i'"),
    ],
)
def test_directives_of_the_wrong_form(options, message):
    with pytest.raises(OptionError) as error:
        make_options(None, options)
    assert str(error.value) == message


def test_contexts_check_their_numbers():
    with pytest.raises(stepwell.StepwellError, match="tile takes numbers from 0, got -1"):
        stepwell.tile(-1)


def test_explain_tells(tmp_path):
    torch._dynamo.reset()
    options = {"tile": {"mul": [8, 24], "nosuch": [1]}, "loop_order": {"mul": [5]}}
    found = stepwell.explain(blend, torch.randn(100, 70), torch.randn(70, 100), options=options, quiet=True)
    (step,) = found.graphs[0].steps
    line = blend.__code__.co_firstlineno + 2
    assert step.schedule.endswith(f"tiles 8 x 24, asked for by the user at test_loop_directives.py:{line}")
    directives = {(w.text, w.granted): w.reason for w in found.graphs[0].directives}
    assert directives == {
        (f"loop-interchange 'mul' (asked for at test_loop_directives.py:{line})", False): "there is no loop '5'; it has 0 (%i), 1 (%j)",
        (f"loop-tile 'mul' (asked for at test_loop_directives.py:{line})", True): "mul: tiles of 8 x 24",
        ("tile 'nosuch'", False): "names no operator of any graph",
    }
    assert "asked for by the user at" in found.full()
