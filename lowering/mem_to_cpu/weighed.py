"""Rows that are weighed by functions of scores: a kernel that calls the generated function (cpu.weighed) on the buffers as they lie, and
private kernels of what their functions do with a block of scores in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, StringAttr, SymbolRefAttr, UnitAttr, f32, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from ...dialects import cpu, loop, mem
from ...dialects.cpu.attention import WeighedOp, is_pointer
from ...dialects.expr import ONE, ZERO, Expr, Sym, as_expr, exact_quotient, free_syms
from ...dialects.mem import BufferType
from ...dialects.nd.base import prop
from ...dialects.support.replace import erase_op
from ...passes.analysis.schedule_attrs import bool_attr, update_schedule
from ...passes.analysis.weighed_calls import MASKED, SURE, WeighedCall
from ..outline import Arguments
from .attention import DTYPES
from .builder import Builder
from .calls.generated import GeneratedCalls, Number

BLOCK = "block_"
"""How the symbols begin that say which block a function is called for."""


@dataclass(frozen=True)
class TermKernel:
    """A private kernel of a block of scores: what its arguments are, as `cpu.weighed` names them, and the symbols among them that the
    call gives."""

    name: str
    arguments: tuple[str, ...]
    symbols: tuple[Sym, ...]


def term_functions(module: ModuleOp) -> dict[str, FuncOp]:
    """The functions of blocks that calls name."""
    named: set[str] = set()
    for op in module.walk():
        named.update(a.string_value() for key in (MASKED, SURE) if isinstance(a := op.attributes.get(key), SymbolRefAttr))
    return {name: f for f in module.ops if isinstance(f, FuncOp) and (name := f.sym_name.data) in named}


class WeighedLowering:
    """Lowers the calls of one module. `kernel` makes the kernel of a nest, by its name."""

    def __init__(self, module: ModuleOp, calls: GeneratedCalls, kernel: Callable[[str, loop.NestOp], tuple[cpu.KernelOp, Arguments]]):
        self.module, self.calls, self.kernel = module, calls, kernel
        self.terms: dict[str, TermKernel] = {}

    def lower_functions(self, functions: Iterable[FuncOp]) -> None:
        """Make private kernels of the functions of blocks."""
        for func in functions:
            (nest,) = [op for op in func.body.block.ops if isinstance(op, loop.NestOp)]
            update_schedule(nest, {"parallel": bool_attr(False)})
            kernel, arguments = self.kernel(func.sym_name.data, nest)
            kernel.properties["sym_visibility"] = StringAttr("private")
            blocks = sum(_is_block(a.type) for a in func.body.block.args)
            places: dict[SSAValue, str] = {
                a: f"block {k}" if k < blocks else f"captured {k - blocks}" for k, a in enumerate(func.body.block.args)
            }
            given = [places[v] for v in arguments.buffers]
            self.terms[func.sym_name.data] = TermKernel(
                kernel.sym_name.data, (*given, *(s.name for s in arguments.symbols)),
                tuple(s for s in arguments.symbols if not s.name.startswith(BLOCK)),
            )  # fmt: skip
            erase_op(func)
            self.module.body.block.add_op(kernel)

    def lower(self, op: mem.ExternOp) -> bool:
        """Replace a call by a launch; whether it is one of weighed rows."""
        call = WeighedCall.of(op.call.data)
        if call is None:
            return False
        outs = [op.operands[k] for k in prop(op, "out") or ()]
        places = [*call.factors, *call.rows, *([] if call.blocks is None else [call.blocks]), *call.captured]
        buffers = [*(op.operands[k] for k in places), *outs]
        types: list[BufferType] = [b.type for b in buffers]  # pyright: ignore[reportAssignmentType]
        named = [a.string_value() if isinstance(a := op.attributes.get(key), SymbolRefAttr) else None for key in (MASKED, SURE)]
        key = (call.softmax, call.scaled, call.added, call.placed, call.scales, call.empty, call.blocks is not None, *named)
        terms = [None if name is None else self.terms[name] for name in named]
        more = sorted({s for t in terms if t is not None for s in t.symbols}, key=lambda s: s.name)

        def declare(count: int) -> WeighedOp:
            return _declaration(f"weighed_rows{count}", call, DTYPES[types[0].element_type], more, terms)

        def arguments(b: Builder, pointers: Sequence[SSAValue], number: Number) -> list[SSAValue]:
            places, given = _fields(call, types)
            found: list[SSAValue] = []
            for name in declare(0).fields():
                if is_pointer(name):
                    found.append(pointers[places[name]])
                else:
                    value = given[name]
                    found.append(b.constant(value, f32) if isinstance(value, float) else number(as_expr(value)))
            first = len(call.factors) + len(call.rows) + (call.blocks is not None)
            return [*found, *pointers[first : first + len(call.captured)], *map(number, more)]

        self.calls.launch(op, "k_weighed_rows_", key, buffers, declare, arguments, more)
        return True


def _is_block(t: Attribute) -> bool:
    """Whether a buffer is one of scores in the cache."""
    return isinstance(t, BufferType) and any(s.name.startswith(BLOCK) for e in t.dims for s in free_syms(e))


def _declaration(name: str, call: WeighedCall, dtype: str, symbols: Sequence[Sym], terms: Sequence[TermKernel | None]) -> WeighedOp:
    properties: dict[str, Attribute] = {
        "sym_name": StringAttr(name), "dtype": StringAttr(dtype), "scores": IntegerAttr(len(call.scales), i64),
        "weights": IntegerAttr(len(call.rows), i64), "captured": IntegerAttr(len(call.captured), i64),
        "symbols": ArrayAttr([StringAttr(s.name) for s in symbols]),
    }  # fmt: skip
    flags = {"softmax": call.softmax, "scaled": call.scaled, "added": call.added, "placed": call.placed, "blocks": call.blocks is not None}
    properties.update({key: UnitAttr() for key, on in flags.items() if on})
    for key, one in zip((MASKED, SURE), terms, strict=True):
        if one is not None:
            properties[key] = SymbolRefAttr(one.name)
            properties[f"{key}_arguments"] = ArrayAttr([StringAttr(text) for text in one.arguments])
    return WeighedOp.create(properties=properties)


def _fields(call: WeighedCall, types: Sequence[BufferType]) -> tuple[dict[str, int], dict[str, Expr | float]]:
    """The numbers of buffers that fields point to, and the other fields."""
    scores, weights = len(call.scales), len(call.rows)
    names = [f"{x}{k}" for k in range(scores) for x in "ab"] + [f"v{k}" for k in range(weights)]
    names += ["blocks"] if call.blocks is not None else []
    places = {name: k for k, name in enumerate(names)}
    first = len(names) + len(call.captured)
    results = [f"o{k}" for k in range(weights)] + (["top", "total"] if call.softmax else ["s0"] if call.added else [])
    places.update({name: first + k for k, name in enumerate(results)})
    batches, heads, rows, _ = types[places["a0" if call.added else "o0"]].dims
    given: dict[str, Expr | float] = {"batches": batches, "heads": heads, "rows": rows, "terms": types[places["b0"]].dims[2]}
    given.update(dict.fromkeys(("blocks_batch", "blocks_head", "blocks_row"), ZERO))
    given["empty"] = call.empty
    if call.added:
        given["s0_length"] = types[places["s0"]].dims[3]
    for k, scale in enumerate(call.scales):
        given[f"scale{k}"], given[f"depth{k}"] = scale, types[places[f"a{k}"]].dims[3]
    for k in range(weights):
        given[f"columns{k}"] = types[places[f"v{k}"]].dims[3]
    for name, place in places.items():
        t = types[place]
        strides = [ZERO if n is ONE else s for n, s in zip(t.dims[:3], t.stride_exprs, strict=False)]
        given.update(dict(zip((f"{name}_batch", f"{name}_head", f"{name}_row"), strides, strict=True)))
        group = ONE if t.dims[1] is heads else heads if t.dims[1] is ONE else exact_quotient(heads, t.dims[1])
        assert group is not None, "heads that divide the result's"
        given[f"{name}_group"] = group
    return places, given
