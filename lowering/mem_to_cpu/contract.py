"""Contractions: a `loop.contract` over buffers becomes a call of a generated matrix multiplication, or of the library.

The accesses are linear, so each operand is a matrix with a row and a column stride for every step of the batch. When one of the two
strides is 1 the generated function (cpu.gemm) takes the operand as it lies, transposed or not; other layouts, integers and contractions
whose schedule says "library" go to ATen with views of the buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from xdsl.dialects import arith
from xdsl.dialects.builtin import StringAttr, UnitAttr, bf16, f16, f32, f64, i8, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import cpu, host, loop, mem
from ...dialects.cpu.gemm import FACTORS, GemmOp
from ...dialects.expr import (
    ONE,
    ZERO,
    Expr,
    IndexMap,
    Sym,
    as_expr,
    dim,
    free_dims,
    free_syms,
    linear_coeff,
    product,
)
from ...dialects.expr.ranges import Range, RangeEnv
from ...dialects.machine import OrderError
from ...dialects.nd.base import IntsAttr
from ...dialects.nd.call_args import Arg, Call, CallAttr
from ...dialects.nd.types import element_bytes, is_float, ui8
from ...dialects.support.replace import erase_op, replace_op
from ...passes.analysis.accesses.panels import panel_columns
from ...passes.analysis.accesses.windows import Windows, windows_of
from ...passes.analysis.origins import title
from ...passes.manager.errors import PassError
from ...passes.manager.locations import source_location
from ..nest.indices import Indices
from ..nest.product_epilogue import RECTANGLE, epilogue_nest, has_epilogue, plain_product, scheduled
from .builder import Builder
from .state import scalar_type

DTYPES: dict[Attribute, str] = {f32: "f32", bf16: "bf16", f16: "f16", f64: "f64", i8: "i8", ui8: "u8", i32: "i32"}
SUMS: dict[str, tuple[str, ...]] = {"f64": ("f64",), "i8": ("i32",), "u8": ("i32",)}
"""Type of the left factor -> the types that the product may have, where those are not the other floats."""


@dataclass(frozen=True)
class Matrix:
    """One operand: strides of the batch loops, of its rows and of its columns, in elements."""

    buffer: SSAValue
    batch: tuple[Expr, ...]
    row: Expr
    column: Expr
    start: Expr = ZERO
    windows: Windows | None = None
    """Where the rows are windows of an image, how to find them; then the strides say nothing."""
    panels: int = 0
    """The columns of a panel, where it is stored in panels (passes/analysis/accesses/panels.py)."""

    @property
    def dtype(self) -> Attribute:
        return loop.element_type(self.buffer.type)


@dataclass(frozen=True)
class Product:
    """C[b, m, n] = sum over k of A[b, m, k] * B[b, k, n] (+ bias[n]), as strides."""

    batch: tuple[Expr, ...]
    m: Expr
    n: Expr
    k: Expr
    a: Matrix
    b: Matrix
    c: Matrix
    bias: Matrix | None = None

    @property
    def is_ordered(self) -> bool:
        """Whether a factor lies as generated code alone reads it: as windows, or in panels."""
        return self.a.windows is not None or self.b.panels > 0

    @property
    def is_narrow(self) -> bool:
        """Whether the factors are bytes, or of two types: the library has no such product."""
        return self.a.dtype != self.b.dtype or self.a.dtype in (i8, ui8)


def strides_of(buffer: SSAValue, m: IndexMap, rank: int) -> list[Expr] | None:
    """The stride of every dimension of a linear access to a buffer, then where it starts; None when it is not linear."""
    t = buffer.type
    assert isinstance(t, mem.BufferType)
    found = _strides(m.results, tuple(t.stride_exprs), rank)
    return None if found is None else [*found]


@lru_cache(maxsize=1024)
def _strides(index: tuple[Expr, ...], steps: tuple[Expr, ...], rank: int) -> tuple[Expr, ...] | None:
    """See strides_of, for an index into a buffer of these strides. Products are asked several times, and those of layers are alike."""
    rest = address = sum((e * s for e, s in zip(index, steps, strict=True)), ZERO)
    found: list[Expr] = []
    for k in range(rank):
        c = linear_coeff(address, dim(k))
        if c is None:
            return None
        found.append(c)
        rest = rest - c * dim(k)
    return None if free_dims(rest) else (*found, rest)


def recognise(op: loop.ContractOp) -> Product | None:
    """The matrix product that a contraction is, if it only stores its accumulator, or the sum of that and a bias."""
    rank = len(op.loop_sizes)
    store = op.block.last_op
    if not isinstance(store, loop.StoreOp) or store.mode is not None or store.masked is not None or len(op.outs) != 1:
        return None
    bias: Matrix | None = None
    if store.value is not op.accumulator or len(list(op.block.ops)) != 1:
        bias = _bias(op, store)
        if bias is None:
            return None
    places = [list(op.indices).index(v) for v in store.index_operands]
    target = IndexMap(rank, tuple(store.index_map.apply([dim(p) for p in places])))
    a, b = strides_of(op.lhs, op.lhs_map.data, rank + 1), strides_of(op.rhs, op.rhs_map.data, rank + 1)
    c = strides_of(op.outs[0], target, rank)
    windows = _windows(op) if a is None and rank == 2 else None
    if windows is not None:
        a = [ZERO, ZERO, ONE, windows.start]
    panels = _panels(op) if c is not None and c[rank - 1] is ONE and (b is None or op.loop_sizes[-1] is not b[rank]) else 0
    if panels:
        b = [ZERO, ONE, as_expr(panels), ZERO]
    if a is None or b is None or c is None or a[rank - 1] is not ZERO or b[rank - 2] is not ZERO:
        return None
    sizes = op.loop_sizes
    return Product(
        sizes[:-2], sizes[-2], sizes[-1], op.depth.data,
        Matrix(op.lhs, tuple(a[: rank - 2]), a[rank - 2], a[rank], a[-1], windows),
        Matrix(op.rhs, tuple(b[: rank - 2]), b[rank], b[rank - 1], b[-1], panels=panels),
        Matrix(op.outs[0], tuple(c[: rank - 2]), c[rank - 2], c[rank - 1], c[-1]),
        bias,
    )  # fmt: skip


def _windows(op: loop.ContractOp) -> Windows | None:
    """The windows that the left factor is made of, if it is."""
    t = op.lhs.type
    assert isinstance(t, mem.BufferType)
    return windows_of(op.lhs_map.data, op.loop_sizes[0], op.depth.data, t.stride_exprs)


def _panels(op: loop.ContractOp) -> int:
    """The columns of the panels that the right factor is stored in; 0 where it is not."""
    t = op.rhs.type
    assert isinstance(t, mem.BufferType)
    return panel_columns(op.rhs_map.data, op.loop_sizes[-1], op.depth.data, loop.element_type(op.lhs.type), t)


def _bias(op: loop.ContractOp, store: loop.StoreOp) -> Matrix | None:
    """What an epilogue adds to the columns of a product without a batch, if it does only that."""
    ops = list(op.block.ops)
    if len(ops) != 3 or len(op.loop_sizes) != 2:
        return None
    load, add, _ = ops
    if not isinstance(load, loop.LoadOp) or load.masked is not None or not isinstance(add, arith.AddfOp):
        return None
    if {*add.operands} != {load.result, op.accumulator} or store.value is not add.result:
        return None
    places = [list(op.indices).index(v) for v in load.index_operands]
    access = IndexMap(2, tuple(load.index_map.apply([dim(p) for p in places])))
    strides = strides_of(load.source, access, 2)
    if strides is None or strides[0] is not ZERO:
        return None
    return Matrix(load.source, (), ZERO, strides[1], strides[2])


def merge_batch(p: Product) -> Product:
    """Drop batch loops of size 1 and join neighbours whose strides allow it, and the last with the rows where these share B."""
    loops = [
        (s, (a, b, c)) for s, a, b, c in zip(p.batch, p.a.batch, p.b.batch, p.c.batch, strict=True) if s is not ONE
    ]
    merged: list[tuple[Expr, tuple[Expr, ...]]] = []
    for size, steps in loops:
        if merged:
            outer, outer_steps = merged[-1]
            if all(o is s * size for o, s in zip(outer_steps, steps, strict=True)):
                merged[-1] = (outer * size, steps)
                continue
        merged.append((size, steps))
    m, row_a, row_c = p.m, p.a.row, p.c.row
    if merged and p.a.column is ONE and p.c.column is ONE:
        # rows of A that share B, though they are counted as a batch: keys and values that several heads share
        size, (step_a, step_b, step_c) = merged[-1]
        if step_b is ZERO and (m is ONE or (step_a is row_a * m and step_c is row_c * m)):
            row_a, row_c = (step_a, step_c) if m is ONE else (row_a, row_c)
            m = m * size
            merged.pop()
    a, b, c = (tuple(steps[i] for _, steps in merged) for i in range(3))
    a, b, c = replace(p.a, batch=a, row=row_a), replace(p.b, batch=b), replace(p.c, batch=c, row=row_c)
    return replace(p, batch=tuple(s for s, _ in merged), m=m, a=a, b=b, c=c)


def _transposed(x: Matrix, rows: Expr, columns: Expr) -> bool | None:
    """False: columns are next to each other; True: rows are; None: neither."""
    if x.column is ONE or columns is ONE:
        return False
    return True if x.row is ONE or rows is ONE else None


def _leading(x: Matrix, transposed: bool, rows: Expr, columns: Expr) -> Expr:
    """The stride between rows (columns when transposed) as the generated function takes it; where there is one row only, any."""
    stride = x.column if transposed else x.row
    other = columns if transposed else rows
    return stride if other is not ONE else (rows if transposed else columns)


def row_major(p: Product) -> Product:
    """The product with the columns of C next to each other: C itself, or its transpose (B^T A^T). A single column becomes a row: the
    generated function takes rows of sums, so that a matrix times a vector runs along the rows of the matrix."""
    if p.is_ordered:
        return p
    column = p.n is ONE and p.m is not ONE and p.c.row is ONE and p.bias is None
    if column or _transposed(p.c, p.m, p.n):
        a, b, c = (replace(x, row=x.column, column=x.row) for x in (p.b, p.a, p.c))
        bias = None if p.bias is None else replace(p.bias, row=p.bias.column, column=p.bias.row)
        return replace(p, m=p.n, n=p.m, a=a, b=b, c=c, bias=bias)
    return p


def transposed(p: Product) -> tuple[bool, bool] | None:
    """(trans_a, trans_b) of the generated function that computes `p` as its operands lie; None when there is none."""
    p = row_major(p)
    trans_a, trans_b = _transposed(p.a, p.m, p.k), _transposed(p.b, p.k, p.n)
    if p.is_ordered and _transposed(p.c, p.m, p.n) is not False:
        return None
    dtype, out = DTYPES.get(p.a.dtype), DTYPES.get(p.c.dtype)
    if trans_a is None or trans_b is None or _transposed(p.c, p.m, p.n) is None or dtype is None or out is None:
        return None
    if DTYPES.get(p.b.dtype) not in FACTORS.get(dtype, ()) or out not in SUMS.get(dtype, ("f32", "bf16", "f16")):
        return None
    if p.bias is not None and (p.bias.column is not ONE or p.bias.row is not ZERO or p.bias.dtype != p.a.dtype):
        return None
    return trans_a, trans_b


@dataclass(frozen=True)
class Epilogue:
    """The kernel of an epilogue, as a launch of it that stands nowhere in the end; `turned`: its columns are rows of the product."""

    launch: host.LaunchOp
    turned: bool

    @property
    def kernel(self) -> str:
        return self.launch.kernel.root_reference.data

    @property
    def symbols(self) -> list[Sym]:
        """The sizes that it takes beside those of the rectangle, in order."""
        return [e for e in self.launch.sizes.data if isinstance(e, Sym) and e not in RECTANGLE]

    @property
    def buffers(self) -> list[SSAValue]:
        return [v for v in self.launch.operands if isinstance(v.type, mem.BufferType)]

    @property
    def numbers(self) -> list[SSAValue]:
        return [v for v in self.launch.operands if not isinstance(v.type, mem.BufferType)]

    @property
    def passed(self) -> list[str]:
        """What each of the kernel's arguments gets (cpu.gemm)."""
        names = ("column", "columns", "row", "rows") if self.turned else ("row", "rows", "column", "columns")
        sizes = [names[RECTANGLE.index(e)] if e in RECTANGLE else "given" for e in self.launch.sizes.data]
        return ["given"] * len(self.buffers) + sizes + ["given"] * len(self.numbers)


class ContractLowering:
    """Lowers the contractions of one module; equal ones share a kernel. `add_symbol` puts an op at the module's end."""

    def __init__(
        self,
        add_symbol: Callable[[Operation], None],
        library: bool = False,
        outline: Callable[[loop.NestOp], host.LaunchOp] | None = None,
        ordered: bool = False,
    ):
        self.add_symbol = add_symbol
        self.ordered = ordered
        self.library = library
        self.outline = outline
        self.kernels: dict[object, str] = {}
        self.functions: dict[str, str] = {}

    def lower(self, op: loop.ContractOp) -> None:
        """Replace `op`."""
        if has_epilogue(op) and recognise(op) is None:
            self._with_epilogue(op)
            return
        product_ = recognise(op)
        block = op.parent
        assert block is not None
        launch = None
        if product_ is not None and (self._is_own(op) or product_.is_narrow):
            launch = self._generated(merge_batch(product_))
        if launch is None and self.ordered and is_float(loop.element_type(op.lhs.type)):
            raise OrderError(
                f"'{title(op)}': no product of ours takes these operands, and the library's sums have no known order",
                place=source_location(op.location) or "",
            )
        replace_op(op, *(launch or self._library(op)))

    def _is_own(self, op: loop.ContractOp) -> bool:
        """Whether a contraction is for generated code, as its schedule says, else as all are."""
        asked = op.schedule.data if isinstance(op.schedule, StringAttr) else ""
        return asked == "gemm" or (asked != "library" and not self.library)

    def _with_epilogue(self, op: loop.ContractOp) -> None:
        """A product that calls the kernel of its epilogue; one that is left to the library stands before its own."""
        block = op.parent
        assert block is not None and self.outline is not None
        plain = plain_product(op)
        block.insert_op_before(plain, op)
        p = recognise(plain)
        generated = self._is_own(op) and p is not None and transposed(p) is not None
        nest = epilogue_nest(op, rectangle=generated)
        block.insert_op_before(nest, op)
        erase_op(op)
        if not generated:
            self.outline(nest)
            self.lower(plain)
            return
        assert p is not None
        p = merge_batch(p)
        turned = row_major(p) is not p
        launch = self.outline(scheduled(nest, p.m if turned else p.n, 0 if turned else 1))
        made = self._generated(p, Epilogue(launch, turned))
        assert made is not None
        erase_op(launch)
        replace_op(plain, *made)

    # ---- generated

    def _generated(self, p: Product, epilogue: Epilogue | None = None) -> list[Operation] | None:
        p = row_major(p)
        layout, dtype, rhs, out = transposed(p), *(DTYPES.get(x.dtype) for x in (p.a, p.b, p.c))
        if layout is None or dtype is None or rhs is None or out is None:
            return None
        trans_a, trans_b = layout
        kernel, passed = (epilogue.kernel, epilogue.passed) if epilogue is not None else ("", ())
        kind = GemmOp.make(
            "", dtype, out, trans_a, trans_b, p.bias is not None, rhs, kernel, passed, p.a.windows is not None, p.b.panels
        )
        if self.ordered:
            kind.properties["ordered"] = UnitAttr()
        name = self._function(kind)
        matrices = (p.a, p.b, p.c) if p.bias is None else (p.a, p.b, p.c, p.bias)
        key = (name, p.batch, p.m, p.n, p.k, *((x.batch, x.row, x.column, x.start) for x in matrices))
        key += p.a.windows.numbers if p.a.windows is not None else ()
        kernel = self.kernels.get(key)
        found = {s for e in _flat(key) for s in free_syms(e)} | set(epilogue.symbols if epilogue is not None else ())
        symbols = sorted(found, key=lambda s: s.name)
        if kernel is None:
            kernel = self.kernels[key] = f"contract{len(self.kernels)}"
            self.add_symbol(_wrapper(kernel, name, p, trans_a, trans_b, symbols, epilogue))
        traffic = sum((element_bytes(x.dtype) * n for x, n in ((p.a, p.m * p.k), (p.b, p.k * p.n), (p.c, p.m * p.n))), ZERO)
        operands = [x.buffer for x in matrices]
        if epilogue is not None:
            operands += epilogue.launch.operands
        return [host.LaunchOp.make(kernel, operands, symbols, bytes=traffic * product(p.batch))]

    def _function(self, kind: GemmOp) -> str:
        """The name of the function of that kind, declared once."""
        dtype, out = kind.dtype.data, kind.out.data
        name = f"gemm_{dtype}{'_' + out if out != dtype else ''}{'_by_' + kind.rhs.data if kind.rhs is not None else ''}"
        name += f"_{'t' if kind.trans_a is not None else 'n'}{'t' if kind.trans_b is not None else 'n'}"
        name += "_windows" if kind.windows is not None else ""
        name += f"_panels{kind.panels.value.data}" if kind.panels is not None else ""
        name += "_bias" if kind.bias is not None else ""
        if kind.epilogue is not None and kind.passed is not None:
            turned = kind.passed.data.index(StringAttr("row")) > kind.passed.data.index(StringAttr("column"))
            name += f"_{kind.epilogue.string_value()}{'_turned' if turned else ''}"
        if name not in self.functions:
            self.functions[name] = name
            kind.properties["sym_name"] = StringAttr(name)
            self.add_symbol(kind)
        return name

    # ---- library

    def _library(self, op: loop.ContractOp) -> list[Operation]:
        """ATen's matmul on views of the buffers, into the out."""
        p = recognise(op)
        if p is None or p.is_ordered:
            what = "only matrix products reach this pass: operands accessed with strides, a body that stores the accumulator once"
            raise PassError(f"{what}, alone or plus a bias", op=op)
        views: list[Operation] = []
        operands: list[SSAValue] = []
        for x, rows, columns in ((p.a, p.m, p.k), (p.b, p.k, p.n), (p.c, p.m, p.n)):
            t = x.buffer.type
            assert isinstance(t, mem.BufferType)
            view = mem.BufferType.get(
                (*p.batch, rows, columns), t.element_type, (*x.batch, x.row, x.column), t.offset_expr + x.start, t.device.data
            )
            if view == t:
                operands.append(x.buffer)
                continue
            views.append(mem.ViewOp.new((x.buffer,), view))
            operands.append(views[-1].results[0])
        if p.bias is not None:
            t = p.bias.buffer.type
            assert isinstance(t, mem.BufferType)
            view = mem.BufferType.get((p.n,), t.element_type, (p.bias.column,), t.offset_expr + p.bias.start, t.device.data)
            if view != t:
                views.append(mem.ViewOp.new((p.bias.buffer,), view))
            operands.insert(0, p.bias.buffer if view == t else views[-1].results[0])
            call = CallAttr(Call("aten.addmm.default", (Arg(0), Arg(1), Arg(2))))
            return [*views, mem.ExternOp.create(operands=operands, properties={"call": call, "out": IntsAttr.get([3])})]
        call = CallAttr(Call("aten.matmul.default" if len(p.batch) != 1 else "aten.bmm.default", (Arg(0), Arg(1))))
        if not p.batch:
            call = CallAttr(Call("aten.mm.default", (Arg(0), Arg(1))))
        extern = mem.ExternOp.create(operands=operands, properties={"call": call, "out": IntsAttr.get([2])})
        return [*views, extern]


def _flat(key: Sequence[object]) -> list[Expr]:
    found: list[Expr] = []
    for item in key:
        if isinstance(item, Expr):
            found.append(item)
        elif isinstance(item, tuple):
            found.extend(_flat(item))
    return found


class SizeIndices(Indices):
    """Size expressions as i64."""

    def __init__(self, b: Builder, symbols: Mapping[Sym, SSAValue]):
        super().__init__(b, RangeEnv({s: Range(0, None) for s in symbols}), i64)
        self.symbols = symbols

    def number(self, e: Expr) -> SSAValue:
        if e.value is not None:
            return self.literal(e.value)
        return self.symbols[e] if isinstance(e, Sym) else self.combined(e)


def _wrapper(
    kernel: str, function: str, p: Product, trans_a: bool, trans_b: bool, symbols: Sequence[Sym], epilogue: Epilogue | None
) -> cpu.KernelOp:
    """The kernel that calls the generated function, for every step of the outer batch loops."""
    matrices = (p.a, p.b, p.c) if p.bias is None else (p.a, p.b, p.c, p.bias)
    others = len(epilogue.buffers) if epilogue is not None else 0
    numbers = [scalar_type(v.type) for v in epilogue.numbers] if epilogue is not None else []
    op = cpu.KernelOp.make(kernel, [cpu.ptr] * (len(matrices) + others) + [i64] * len(symbols) + numbers)
    block: Block = op.body.block
    b = Builder(block)
    first = len(matrices) + others
    table: dict[Sym, SSAValue] = dict(zip(symbols, block.args[first : first + len(symbols)], strict=True))
    value = SizeIndices(b, table).number
    pointers: list[SSAValue] = []
    for x, pointer in zip(matrices, block.args[: len(matrices)], strict=True):
        moved = x.start is not ZERO
        pointers.append(b.place(cpu.PtrAddOp.make(pointer, value(x.start), x.dtype)).results[0] if moved else pointer)
    outer, inner = p.batch[:-1], p.batch[-1:]
    zero, one = b.int(0), b.int(1)
    for i, size in enumerate(outer):
        (index, *_) = b.begin_for(zero, value(size), one)
        for k, x in enumerate(matrices):
            step = b.mul(index, value(x.batch[i]))
            pointers[k] = b.place(cpu.PtrAddOp.make(pointers[k], step, x.dtype)).results[0]
    batch = value(inner[0]) if inner else one
    matrices = matrices[:3]
    strides = [value(x.batch[-1]) if inner else zero for x in matrices]
    leading = [
        value(_leading(p.a, trans_a, p.m, p.k)), value(_leading(p.b, trans_b, p.k, p.n)), value(_leading(p.c, False, p.m, p.n)),
    ]  # fmt: skip
    arguments = [*pointers, value(p.m), value(p.n), value(p.k), *leading, batch, *strides]
    if p.a.windows is not None:
        arguments += [value(e) for e in p.a.windows.numbers]
    if epilogue is not None:
        arguments += block.args[len(matrices) : first]
        arguments += [table[s] for s in epilogue.symbols]
        arguments += block.args[first + len(symbols) :]
    b.place(cpu.CallOp.make(function, arguments))
    for _ in outer:
        b.end_for()
    block.add_op(cpu.ReturnOp.create())
    return op
