"""What `explain` tells of the parts of a program that Dynamo left to eager."""

import json

import torch

from stepwell.passes.cost.machine.cpu import flat
from stepwell.tools.explain import main as tool

MACHINE = flat(gflops=100.0, memory_gbs=10.0, cache_gbs=50.0, threads=2)


def told(function, *args):
    torch._dynamo.reset()
    return tool.explain(function, *args, machine=MACHINE, quiet=True)


def with_print(x):
    y = torch.relu(x).sum(1)
    print(end="")
    return y.sin()


@torch.compiler.disable
def disabled(x):
    return x + 1


def with_branch(x):
    x = disabled(x * 2)
    if x.sum() > 0:
        return x.sin()
    return x.cos()


def given_up(x):
    for _ in range(2):
        with open("/dev/null"):
            x = x + 1
    return x


def line_of(function, text):
    with open(__file__) as file:
        lines = file.read().splitlines()
    return next(k for k, line in enumerate(lines, 1) if k >= function.__code__.co_firstlineno and text in line)


def test_a_module_that_dynamo_does_not_trace():
    with torch._dynamo.config.patch(allow_rnn=False):  # whatever other tests leave
        found = told(torch.nn.LSTM(4, 4), torch.randn(2, 3, 4))
    assert found.graphs == [] and len(found.eager) == 1
    text = str(found)
    assert "Nothing was compiled: Dynamo gave no graph." in text and "computes nothing" not in text
    assert "(the whole call runs in eager): Attempted to wrap RNN, GRU, or LSTM: Dynamo does not support RNN, GRU, or LSTM." in text
    assert "hint: Set torch._dynamo.config.allow_rnn=True" in text
    report = json.dumps(found.data())
    assert "left to eager by Dynamo" in report and "allow_rnn" in report


def test_a_break_is_named_with_its_line_and_reason():
    found = told(with_print, torch.randn(4, 6))
    assert len(found.graphs) == 2
    (part,) = found.eager
    assert (part.place.file, part.place.line) == (__file__, line_of(with_print, "print(end"))
    assert f'test_dynamo.py:{part.place.line}: print(end="") (the line runs in eager): ' in str(found)
    assert "`print`" in part.why and any("reorderable_logging_functions" in hint for hint in part.hints)


def test_several_breaks_in_their_order():
    found = told(with_branch, torch.randn(4, 6))
    lines = [line_of(with_branch, "disabled(x"), line_of(with_branch, "if x.sum")]
    assert [part.place.line for part in found.eager] == lines
    assert "torch.compiler.disable" in found.eager[0].why and "a branch on the value of a tensor" in found.eager[1].why


def test_a_function_that_is_given_up():
    found = told(given_up, torch.randn(3))
    (part,) = found.eager
    assert part.what == "all of 'given_up'" and part.place.line == line_of(given_up, "open(") and "`open`" in part.why


def test_a_program_that_is_compiled_whole_has_no_such_part():
    found = told(lambda x: x.sin() + 1, torch.randn(3))
    assert found.eager == [] and "Left to eager" not in str(found)
    text = str(told(lambda x: x, torch.randn(3)))
    assert "Nothing was compiled: the function computes nothing with tensors, or returns its inputs." in text
    assert "torch._dynamo.reset()" in text


def test_only_what_happened_in_this_call():
    told(with_print, torch.randn(4, 6))
    assert told(lambda x: x.sin(), torch.randn(3)).eager == []
