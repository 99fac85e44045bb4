"""Builds host programs from text, as the torch backend does, and runs them on either path."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import host, load_dialects
from stepwell.lowering.to_host.to_host import ToHost
from stepwell.targets.cpu.emit.module import emit_kernels
from stepwell.targets.cpu.jit import compile_text
from stepwell.targets.host.emit import emit_host, releases_behind_launches
from stepwell.targets.host.load import load_object_code, load_program

KERNELS = """
  cpu.kernel @double(%x : !cpu.ptr, %y : !cpu.ptr, %n : i64) {
    %zero = arith.constant 0 : i64
    %one = arith.constant 1 : i64
    scf.for %i = %zero to %n step %one : i64 {
      %v = cpu.load %x[%i] : f32
      %d = arith.addf %v, %v : f32
      cpu.store %d, %y[%i] : f32
    }
    cpu.return
  }
  cpu.kernel @scale(%x : !cpu.ptr, %y : !cpu.ptr, %n : i64, %f : f64) {
    %zero = arith.constant 0 : i64
    %one = arith.constant 1 : i64
    %g = arith.truncf %f : f64 to f32
    scf.for %i = %zero to %n step %one : i64 {
      %v = cpu.load %x[%i] : f32
      %d = arith.mulf %v, %g : f32
      cpu.store %d, %y[%i] : f32
    }
    cpu.return
  }
  cpu.kernel @below(%x : !cpu.ptr, %n : i64) {
    %zero = arith.constant 0 : i64
    %v = cpu.load %x[%zero] : i64
    %ok = arith.cmpi slt, %v, %n : i64
    cpu.assert %ok, "index out of range" : i1
    cpu.return
  }
"""


def parse(text):
    """The module of some text."""
    ctx = Context()
    load_dialects(ctx)
    module = Parser(ctx, text).parse_module()
    module.verify()
    return ctx, module


def build_module(ctx, module, path="native", constants=(), objects=()):
    """A callable for the program of a module."""
    unit = emit_kernels(module)
    description = emit_host(unit, host.program_of(module), native=path == "native")
    library = load_object_code(compile_text(unit.text()), path == "native")
    return load_program(description, library, constants, objects)


class Builder:
    """Makes callables of one path."""

    def __init__(self, path):
        self.path = path

    def program(self, text, constants=(), objects=()):
        """A callable for `host.program` text; the kernels above are there."""
        ctx, module = parse(f"builtin.module {{\n{KERNELS}\n{text}\n}}")
        return build_module(ctx, module, self.path, constants, objects)

    def function(self, text, constants=(), objects=()):
        """A callable for a `func.func` of mem and launches, through to-host."""
        ctx, module = parse(f"builtin.module {{\n{KERNELS}\n{text}\n}}")
        ToHost().apply(ctx, module)
        module.verify()
        return build_module(ctx, module, self.path, constants, objects)

    def order(self, text):
        """The operations of `host.program` text in the order in which the native entry has them."""
        _, module = parse(f"builtin.module {{\n{KERNELS}\n{text}\n}}")
        return [op.name.removeprefix("host.") for op in releases_behind_launches(host.program_of(module).body.block.ops)]

    def entry_lines(self, text):
        """How many lines of LLVM text the native entry of `host.program` text has, tables not counted."""
        _, module = parse(f"builtin.module {{\n{KERNELS}\n{text}\n}}")
        unit = emit_kernels(module)
        emit_host(unit, host.program_of(module), native=True)
        (entry,) = (f for f in unit.functions if "@stepwell_entry" in f)
        return len(entry.splitlines())


@pytest.fixture(params=["native", "python"])
def build(request):
    """Makes callables, once for each path."""
    return Builder(request.param)


@pytest.fixture
def native():
    """Makes callables with native entries."""
    return Builder("native")
