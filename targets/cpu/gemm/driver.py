"""Matrix multiplication for the CPU: one body of LLVM IR per (types, layouts, instruction set), for all sizes and
epilogues.

    symbol, text = gemm_function(GemmSpec("f32", trans_b=True, isa=isa_for(target()).name))

`text` defines `symbol` and internal helpers and declares nothing; `declarations(text)` lists what it needs, so that
several pieces can share one module, and `gemm_module(spec)` is a module of its own: nothing in it depends on the
graph, so that its object can be kept and linked to many graphs. The function is

    void symbol(ptr A, ptr B, ptr C, i64 M, i64 N, i64 K, i64 lda, i64 ldb, i64 ldc,
                i64 batch, i64 strideA, i64 strideB, i64 strideC,
                ptr bias, ptr epilogue, ptr context, ptr scratch, i64 threads)

- A is [M, K] with row stride lda, or [K, M] with row stride lda if `trans_a`; B is [K, N] or, if `trans_b`, [N, K]; C
  is [M, N]. The inner stride is one; strides count elements; a batch stride may be 0. Any size may be 0 (K = 0 gives
  the bias, or zeros).
- bias: N elements added to every row, or null.
- scratch (`gemm_with_scratch` provides it): `scratch_bytes(spec, threads)` bytes, used by this call alone; `threads`
  says for how many threads it is large enough, and at most that many run (fewer if torch's own limit is lower or the
  work is small; one inside a parallel region). Threads come from `GOMP_parallel`, the pool that torch uses.
- epilogue: null, or a function of the caller's,

      void epilogue(ptr context, i64 batch, i64 row0, i64 row1, i64 col0, i64 col1, ptr tile, i64 tile_ld)

  called once for every part of C, from any thread, while that part is in the first-level cache. `tile` points to the
  finished sums of [row0, row1) x [col0, col1), in the accumulator's type, rows `tile_ld` elements apart. If C has the
  accumulator's type, the tile *is* that part of C, and the epilogue may change it there. If C has another type, or
  with `GemmSpec.tile`, the tile is scratch memory, C is not touched (it may be null), and the epilogue stores every
  result itself.
"""

from __future__ import annotations

import re

from ....passes.cost.nest_cost import SERIAL_NS
from . import amx as gemm_amx
from .block import BLOCK_ARGS, BLOCK_TYPES, BlockPlan, block_functions
from .ir import Function, Value
from .scratch import with_scratch
from .shares import best_split
from .spec import ELEMENT_BYTES, GemmSpec, Shape, host_isa, isa_for

__all__ = [
    "GEMM_ARGS",
    "GemmSpec",
    "as_module",
    "declarations",
    "gemm_function",
    "gemm_module",
    "host_isa",
    "isa_for",
    "scratch_bytes",
    "shared_gemm_module",
]

GEMM_ARGS = (
    *(("ptr", name) for name in ("a", "b", "c")),
    *(("i64", name) for name in ("m", "n", "k", "lda", "ldb", "ldc", "batches", "sa", "sb", "sc")),
    ("ptr", "bias"),
    ("ptr", "epilogue"),
    ("ptr", "ctx"),
    ("ptr", "scratch"),
    ("i64", "threads"),
)
_PARTS = ("batch_parts", "row_parts", "column_parts")
_FIELDS = {name: 8 * k for k, name in enumerate([*(name for _, name in GEMM_ARGS), *_PARTS, "slots"])}


def scratch_bytes(spec: GemmSpec, threads: int) -> int:
    """Bytes of scratch memory that a call with this many threads needs."""
    return _plan(spec).scratch_bytes * max(threads, 1)


def _plan(spec: GemmSpec) -> BlockPlan | gemm_amx.AmxPlan:
    return gemm_amx.AmxPlan(spec) if Shape(spec).on_matrix_unit else BlockPlan(spec)


def gemm_function(spec: GemmSpec) -> tuple[str, str]:
    """The symbol and the LLVM IR of the function that computes `spec`; see the head of this file for its signature."""
    plan, symbol = _plan(spec), spec.symbol
    if isinstance(plan, gemm_amx.AmxPlan):
        parts = gemm_amx.block_functions(plan, symbol, BLOCK_ARGS)
    else:
        parts = block_functions(plan, symbol)
    parts += [_slot_function(plan, symbol), thunk(symbol, _FIELDS["slots"]), _entry(plan, symbol)]
    return symbol, "\n".join(parts)


def shared_gemm_module(spec: GemmSpec) -> str:
    """A whole module with `spec.shared_symbol`: the same function without its last two arguments."""
    symbol, text = gemm_function(spec)
    shared = with_scratch(symbol, GEMM_ARGS[:-2], scratch_bytes(spec, 1), spec.shared_symbol, linkage="")
    return as_module(text + shared)


def _entry(plan: BlockPlan | gemm_amx.AmxPlan, symbol: str) -> str:
    """The public function: how many threads, which grid of rectangles."""
    f = Function(symbol, GEMM_ARGS, linkage="", plain=True)
    shape = plan.shape
    context = f.alloca(len(_FIELDS), "i64")
    with f.when(f.both(f.both(f.cmp("sgt", "%m", 0), f.cmp("sgt", "%n", 0)), f.cmp("sgt", "%batches", 0))):
        for ty, name in GEMM_ARGS:
            f.store(ty, f"%{name}", f.at(context, _FIELDS[name]), 8)
        multiplies = f.mul(f.mul("%m", "%n"), "%k")
        parts = (("%m", "%k", shape.element), ("%k", "%n", shape.b_element), ("%m", "%n", ELEMENT_BYTES[shape.spec.c_type]))
        sizes = [f.mul(f.mul(rows, columns), element) for rows, columns, element in parts]
        cost = f.add(f.div(multiplies, 100), f.div(f.add(f.add(sizes[0], sizes[1]), sizes[2]), 20))
        cost = f.mul(cost, "%batches")
        with f.choose(f.both(f.cmp("sgt", "%threads", 1), f.cmp("sgt", cost, 2 * SERIAL_NS))) as branch:
            wanted = f.min("%threads", f.let("sext i32 " + f.let("call i32 @omp_get_max_threads()") + " to i64"))
            wanted = f.min(wanted, f.div(cost, SERIAL_NS))
            wanted = f.max(wanted, 1)
            columns, rows = f.ceil_div("%n", shape.width), f.ceil_div("%m", plan.row_grain)
            batch_parts, rest = best_split(f, wanted, "%batches", f.mul(columns, rows))
            column_parts, row_parts = best_split(f, rest, columns, rows, shape.width, "%n")
            slots = f.mul(f.mul(batch_parts, row_parts), column_parts)
            values: list[Value] = [batch_parts, row_parts, column_parts, slots]
            for name, value in zip((*_PARTS, "slots"), values, strict=True):
                f.store("i64", value, f.at(context, _FIELDS[name]), 8)
            run_slots(f, symbol, context, slots)
            branch.otherwise()
            for name in (*_PARTS, "slots"):
                f.store("i64", 1, f.at(context, _FIELDS[name]), 8)
            f.do(f"call void @{symbol}_slot(ptr {context}, i64 0)")
    return f.text()


def run_slots(f: Function, symbol: str, context: Value, slots: Value) -> None:
    """Call `symbol_slot` for each slot: one at once, several by the threads that torch uses."""
    with f.choose(f.cmp("eq", slots, 1)) as alone:
        f.do(f"call void @{symbol}_slot(ptr {context}, i64 0)")
        alone.otherwise()
        count = f.let(f"trunc i64 {slots} to i32")
        f.do(f"call void @GOMP_parallel(ptr @{symbol}_thunk, ptr {context}, i32 {count}, i32 0)")


def thunk(symbol: str, slots: int) -> str:
    """What every thread runs: slots of the context, whose number is `slots` bytes into it. The team may turn out smaller than was asked
    for."""
    f = Function(f"{symbol}_thunk", [("ptr", "context")], plain=True)
    first = f.let("sext i32 " + f.let("call i32 @omp_get_thread_num()") + " to i64")
    team = f.let("sext i32 " + f.let("call i32 @omp_get_num_threads()") + " to i64")
    with f.loop(first, f.load("i64", f.at("%context", slots), 8), team) as slot:
        f.do(f"call void @{symbol}_slot(ptr %context, i64 {slot.i})")
    return f.text()


def _slot_function(plan: BlockPlan | gemm_amx.AmxPlan, symbol: str) -> str:
    """One rectangle of the grid, for its part of the batch."""
    f = Function(f"{symbol}_slot", [("ptr", "context"), ("i64", "slot")], plain=True)
    spec, shape = plan.spec, plan.shape
    types = {name: ty for ty, name in GEMM_ARGS}
    v = {name: f.load(types.get(name, "i64"), f.at("%context", offset), 8) for name, offset in _FIELDS.items()}
    column = f.let(f"urem i64 %slot, {v['column_parts']}")
    rest = f.div("%slot", v["column_parts"])
    row = f.let(f"urem i64 {rest}, {v['row_parts']}")
    part = f.div(rest, v["row_parts"])

    def range_of(index: Value, parts: Value, size: Value, grain: int) -> tuple[Value, Value]:
        each = f.mul(f.ceil_div(f.ceil_div(size, grain), parts), grain)
        first = f.min(f.mul(index, each), size)
        return first, f.min(f.add(first, each), size)

    m0, m1 = range_of(row, v["row_parts"], v["m"], plan.row_grain)
    n0, n1 = range_of(column, v["column_parts"], v["n"], shape.width)
    first = f.div(f.mul(part, v["batches"]), v["batch_parts"])
    last = f.div(f.mul(f.add(part, 1), v["batches"]), v["batch_parts"])
    scratch = f.at(v["scratch"], f.mul("%slot", plan.scratch_bytes))
    c_bytes = ELEMENT_BYTES[spec.c_type]
    with f.loop(first, last) as batch:
        a = f.at(v["a"], f.mul(f.mul(batch.i, v["sa"]), shape.element))
        b = f.at(v["b"], f.mul(f.mul(batch.i, v["sb"]), shape.b_element))
        c = f.at(v["c"], f.mul(f.mul(batch.i, v["sc"]), c_bytes))
        values = [
            a,
            b,
            c,
            v["lda"],
            v["ldb"],
            v["ldc"],
            v["k"],
            m0,
            m1,
            n0,
            n1,
            v["bias"],
            v["epilogue"],
            v["ctx"],
            batch.i,
            scratch,
        ]
        args = ", ".join(f"{ty} {value}" for ty, value in zip(BLOCK_TYPES.split(", "), values, strict=True))
        f.do(f"call void @{symbol}_block({args})")
    return f.text()


_RUNTIME = {
    "GOMP_parallel": ("void", "ptr, ptr, i32, i32"),
    "omp_get_thread_num": ("i32", ""),
    "omp_get_num_threads": ("i32", ""),
    "omp_get_max_threads": ("i32", ""),
    "aligned_alloc": ("ptr", "i64, i64"),
    "free": ("void", "ptr"),
    "logf": ("float", "float"),
    "syscall": ("i64", "i64, ..."),
}
_INTRINSIC = re.compile(r"call (?:reassoc )?(?P<result>[^@\n]+?) @(?P<name>llvm\.[\w.]+)\((?P<args>[^\n]*)\)")
_CALLED = re.compile(r"@(\w+)\(")


def declarations(text: str) -> list[str]:
    """A `declare` line for everything that the IR of this file calls and does not define, each name once, sorted."""
    found = {name: (*_RUNTIME[name],) for name in _CALLED.findall(text) if name in _RUNTIME}
    for match in _INTRINSIC.finditer(text):
        if match["name"] not in found:
            types = ", ".join(_type_of(arg) for arg in _split_arguments(match["args"]))
            found[match["name"]] = (match["result"], types)
    return [f"declare {result} @{name}({arguments})" for name, (result, arguments) in sorted(found.items())]


def as_module(text: str) -> str:
    """`text` with its declarations: a whole LLVM module."""
    return "\n".join([text, *declarations(text), ""])


def gemm_module(spec: GemmSpec) -> tuple[str, str]:
    """The symbol and a whole LLVM module that defines it."""
    symbol, text = gemm_function(spec)
    return symbol, as_module(text)


def _split_arguments(text: str) -> list[str]:
    """At the commas outside brackets."""
    out, depth, start = [], 0, 0
    for k, char in enumerate(text):
        depth += (char in "<([") - (char in ">)]")
        if char == "," and not depth:
            out.append(text[start:k].strip())
            start = k + 1
    return [*out, text[start:].strip()]


def _type_of(argument: str) -> str:
    if argument.startswith("<"):
        return argument[: argument.index(">") + 1]
    return argument.split(" ", 1)[0]
