"""Products are guessed before a graph is lowered, and made in a thread meanwhile."""

import os
import re

import pytest
import torch
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.targets.cpu import library
from stepwell.targets.cpu.forecast import expected_functions

SYMBOL = "stepwell_gemm_f32_nt_generic_shared"


def kinds(body, *arguments, name="_f32_([nt]{2})_"):
    """The layouts of the products that are expected, as nn, nt, tn or tt."""
    names = ", ".join(f"%a{k} : !nd.tensor<{a}>" for k, a in enumerate(arguments))
    text = f"func.func @forward({names}) {{\n{body}\nfunc.return }}"
    ctx = Context()
    load_dialects(ctx)
    return [re.findall(name, s)[0] for s in expected_functions(Parser(ctx, text).parse_module())]


T = "!nd.tensor<16 x 16 x f32>"


def test_layouts_follow_from_permutations():
    plain = f"%c = nd.matmul %a0, %a1 : ({T}, {T}) -> {T}"
    assert kinds(plain, "16 x 16 x f32", "16 x 16 x f32") == ["nn"]
    turned = f"%t = nd.permute %a1 {{dims = [1, 0]}} : ({T}) -> {T}\n"
    assert kinds(turned + plain.replace("%a1", "%t"), "16 x 16 x f32", "16 x 16 x f32") == ["nt"]
    back = turned + f"%u = nd.permute %t {{dims = [1, 0]}} : ({T}) -> {T}\n"
    assert kinds(back + plain.replace("%a1", "%u"), "16 x 16 x f32", "16 x 16 x f32") == ["nn"]


def test_a_weight_in_panels():
    views = """%p = nd.permute %a1 {dims = [1, 0, 2]} : (!nd.tensor<2 x 96 x 64 x f32>) -> !nd.tensor<96 x 2 x 64 x f32>
        %r = nd.reshape %p : (!nd.tensor<96 x 2 x 64 x f32>) -> !nd.tensor<96 x 128 x f32>
        %s = nd.slice %r {starts = [0, 0], steps = [1, 1]} : (!nd.tensor<96 x 128 x f32>) -> !nd.tensor<96 x 100 x f32>
        %c = nd.matmul %a0, %s : (!nd.tensor<16 x 96 x f32>, !nd.tensor<96 x 100 x f32>) -> !nd.tensor<16 x 100 x f32>"""
    assert kinds(views, "16 x 96 x f32", "2 x 96 x 64 x f32", name="_f32_nn_[a-z0-9_]*_(panels64)_") == ["panels64"]


def test_bytes_in_panels():
    views = """%p = nd.permute %a1 {dims = [1, 3, 0, 2]} : (!nd.tensor<2 x 24 x 64 x 4 x i8>) -> !nd.tensor<24 x 4 x 2 x 64 x i8>
        %r = nd.reshape %p : (!nd.tensor<24 x 4 x 2 x 64 x i8>) -> !nd.tensor<96 x 128 x i8>
        %s = nd.slice %r {starts = [0, 0], steps = [1, 1]} : (!nd.tensor<96 x 128 x i8>) -> !nd.tensor<96 x 100 x i8>
        %w = nd.cast %s : (!nd.tensor<96 x 100 x i8>) -> !nd.tensor<96 x 100 x f32>
        %x = nd.cast %a0 : (!nd.tensor<16 x 96 x ui8>) -> !nd.tensor<16 x 96 x f32>
        %c = nd.matmul %x, %w : (!nd.tensor<16 x 96 x f32>, !nd.tensor<96 x 100 x f32>) -> !nd.tensor<16 x 100 x f32>"""
    assert kinds(views, "16 x 96 x ui8", "2 x 24 x 64 x 4 x i8", name="_u8_nn_[a-z0-9_]*_(panels64)_") == ["panels64"]


def test_a_matrix_times_a_vector_is_computed_as_a_row():
    text = f"%c = nd.matmul %a0, %a1 : ({T}, !nd.tensor<16 x 1 x f32>) -> !nd.tensor<16 x 1 x f32>"
    assert kinds(text, "16 x 16 x f32", "16 x 1 x f32") == ["nt"]


def test_integers_are_not_expected():
    t = "!nd.tensor<16 x 16 x i64>"
    assert kinds(f"%c = nd.matmul %a0, %a1 : ({t}, {t}) -> {t}", "16 x 16 x i64", "16 x 16 x i64") == []


def called(monkeypatch, function, *args):
    """The functions that are expected of a compiled function, and those that its program calls."""
    expected, used = [], []
    monkeypatch.setattr("stepwell.targets.cpu.target.prepare", expected.extend)
    original = library.library_symbols
    monkeypatch.setattr("stepwell.targets.cpu.jit.library_symbols", lambda names: used.extend(found := original(names)) or found)
    with torch.no_grad():
        torch.compile(function, backend="stepwell", fullgraph=True, options={"cache": "off"})(*args)
    return set(expected), set(used)


def spelled_out(q, k, v):
    scores = (q @ k.transpose(-2, -1)).masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), float("-inf"))
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("function", [spelled_out, torch.nn.functional.scaled_dot_product_attention])
def test_attention_is_expected_and_its_products_are_not(function, monkeypatch):
    """They are made in a thread while the graph is lowered, and nothing is that is not called."""
    expected, used = called(monkeypatch, function, *(torch.randn(2, 4, 64, 32) for _ in range(3)))
    assert expected == used and len(used) == 1


@pytest.fixture
def nothing_loaded(monkeypatch):
    monkeypatch.setattr(library, "_loaded", {})
    monkeypatch.setattr(library, "_ordered", {})


def test_what_was_prepared_is_used(nothing_loaded, monkeypatch):
    made = []
    original = library.module_of
    monkeypatch.setattr(library, "module_of", lambda spec: made.append(spec) or original(spec))
    library.prepare([SYMBOL, "puts", SYMBOL])
    library.settle()
    assert len(made) == 1
    assert library.library_symbols([SYMBOL, "puts"])[SYMBOL] and len(made) == 1
    library.prepare([SYMBOL])
    assert len(made) == 1 and not library._ordered


def test_a_failure_reaches_the_one_who_needs_it(nothing_loaded, monkeypatch):
    def fail(symbol, spec):
        raise ValueError("no such body")

    monkeypatch.setattr(library, "_object", fail)
    library.prepare([SYMBOL])
    with pytest.raises(ValueError, match="no such body"):
        library.library_symbols([SYMBOL])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_waits_for_the_thread(nothing_loaded):
    library.prepare([SYMBOL])
    child = os.fork()
    if child == 0:
        os._exit(0 if all(f.done() for f in library._ordered.values()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
