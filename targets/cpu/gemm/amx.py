"""Products of bfloat on Intel's matrix unit (AMX): the loops of `block.py` around tiles of 32 x 32 sums.

The unit multiplies 16 rows x 32 elements, read from memory as they lie, with 32 elements x 16 columns, stored as
pairs along K. So the left operand needs no packing if K is contiguous, and the right one is packed. With B stored [N,
K] both are contiguous along K: then the smaller one is packed, and if that is A, the transposed product is computed
and transposed on its way out ("swapped" below: rows are those of B, columns those of A). Weights of a linear layer
are then streamed once, never packed.

    for jc over columns, NC at a time
      for ic over rows, MC at a time              (all rows at once unless K is cut)
        for pc over K, KC at a time
          pack the right operand [pc, jc]
          for i over rows, 32 at a time           (copied into a padded strip if fewer, if K is no multiple of 32, or
          if transposed)
            for j over the panels: the kernel, sums in scratch memory
            finish the strip after the last pc: bias, transposition, epilogue or conversion
"""

from __future__ import annotations

from dataclasses import dataclass

from ....passes.cost.machine.prices import prices
from .convert import convert_rows
from .ir import Function, Value
from .kernels import KERNEL_ARGS, KERNEL_TYPES
from .pack import load_across, pack_b_columns, pack_rows, transpose_lanes
from .spec import AMX_PERMISSION, ELEMENT_BYTES, GemmSpec, Shape

TILE_ROWS = 16
"""Rows of a tile; a row has 64 bytes: 16 floats, 16 pairs or 32 bfloats."""
STRIP_ROWS = 2 * TILE_ROWS
STEP_TERMS = 32
"""Elements along K in one multiplication."""


@dataclass(frozen=True)
class AmxBlocks:
    """How much of a product a thread has at once: terms and columns of a packed block of B; rows of unfinished sums. `swap_rows`: with B
    stored [N, K], up to this many rows of A are packed instead of B."""

    depth: int
    columns: int
    swap_rows: int
    sum_rows: int


BLOCKS = prices("cpu_amx_blocks", AmxBlocks)


class AmxPlan:
    """The layout of one thread's scratch memory."""

    def __init__(self, spec: GemmSpec):
        self.spec, self.shape, self.row_grain = spec, Shape(spec), STRIP_ROWS
        sizes = {
            "bias": max(BLOCKS.columns, STRIP_ROWS) * 4,
            "left": STRIP_ROWS * (BLOCKS.depth * 2 + 64),
            "right": BLOCKS.depth * 2 * BLOCKS.columns,
            "sums": BLOCKS.sum_rows * BLOCKS.columns * 4,
            "turned": BLOCKS.columns * STRIP_ROWS * 4,
        }
        self.offsets, end = {}, 0
        for name, size in sizes.items():
            self.offsets[name] = end
            end += size
        self.scratch_bytes = end + 256


def block_functions(plan: AmxPlan, symbol: str, block_args: tuple[tuple[str, str], ...]) -> list[str]:
    """The block function `<symbol>_block` and everything it calls."""
    spec, shape = plan.spec, plan.shape
    out = [
        *tile_definitions(symbol),
        convert_rows(f"{symbol}_bias", shape.isa, spec.bias_type, "f32", "f32"),
    ]
    pack = pack_b_columns(shape, f"{symbol}_pack_b", STRIP_ROWS) if spec.trans_b else None
    out.append(pack or pack_rows(shape, f"{symbol}_pack_b", f"{symbol}_zeros", STRIP_ROWS))
    strip = f"{symbol}_strip"
    out.append(_turned_strip(shape, strip, f"{symbol}_zeros") if spec.trans_a else _strip(strip))
    if spec.trans_b and not spec.trans_a:
        out.append(_transpose_sums(shape, f"{symbol}_turn"))
    if not spec.tile:
        out.append(convert_rows(f"{symbol}_store", shape.isa, "f32", spec.c_type, "f32"))
    out.append(_Block(plan, symbol, block_args).text())
    return out


def tile_definitions(symbol: str) -> list[str]:
    """`<symbol>_zeros` (256 bytes), the products `<symbol>_tile32` and `_tile16`, and what `begin_tiles` uses."""
    config = [1, 0, *[0] * 14, *[64, 0] * 8, *[0] * 16, *[TILE_ROWS] * 8, *[0] * 8]
    return [
        f"@{symbol}_zeros = internal constant [256 x i8] zeroinitializer, align 64\n",
        f"@{symbol}_config = internal constant [64 x i8] [{', '.join(f'i8 {x}' for x in config)}], align 64\n",
        f"@{symbol}_permitted = internal global i8 0\n",
        _kernel(f"{symbol}_tile32", 2),
        _kernel(f"{symbol}_tile16", 1),
    ]


def begin_tiles(f: Function, symbol: str) -> None:
    """Ask for the unit once in a process, and give the tiles their shapes."""
    flag = f"@{symbol}_permitted"
    with f.when(f.let(f"icmp eq i8 {f.load('i8', flag)}, 0", "t")):
        number, request, feature = AMX_PERMISSION
        f.let(f"call i64 (i64, ...) @syscall(i64 {number}, i64 {request}, i64 {feature})")
        f.store("i8", 1, flag)
    f.do(f"call void @llvm.x86.ldtilecfg(ptr @{symbol}_config)")


def _kernel(name: str, height: int) -> str:
    """`height` x 2 tiles of sums; `k` counts blocks of 32 elements, `bs` is the stride of pairs of B."""
    f = Function(name, KERNEL_ARGS)
    sums = [(i, j) for i in range(height) for j in range(2)]

    def tile(what: str, number: int, pointer: str, stride: Value) -> None:
        f.do(f"call void @llvm.x86.tile{what}64(i8 {number}, ptr {pointer}, i64 {stride})")

    for number, (i, j) in enumerate(sums):
        tile("loadd", number, f.at(f.at("%init", f.mul("%ild", TILE_ROWS * i)), 64 * j), "%ild")
    with f.loop(0, "%k", 1, [("i64", 0), ("i64", 0)]) as body:
        left, right = body.values
        b = f.at("%b", right)
        for j in range(2):
            tile("loadd", 6 + j, f.at(b, 64 * j), "%bs")
        for i in range(height):
            tile("loadd", 4 + i, f.at(f.at("%a", f.mul("%ars", TILE_ROWS * i)), left), "%ars")
            for j in range(2):
                f.do(f"call void @llvm.x86.tdpbf16ps(i8 {2 * i + j}, i8 {4 + i}, i8 {6 + j})")
        body.next = [f.add(left, STEP_TERMS * 2), f.add(right, f.mul("%bs", TILE_ROWS))]
    for number, (i, j) in enumerate(sums):
        tile("stored", number, f.at(f.at("%c", f.mul("%cld", TILE_ROWS * i)), 64 * j), "%cld")
    return f.text()


_STRIP_ARGS = (("ptr", "src"), ("i64", "ld"), ("i64", "mr"), ("i64", "k"), ("ptr", "dst"), ("i64", "dst_ld"))


def _strip(name: str) -> str:
    """`name(src, ld, mr, k, dst, dst_ld)`: copy rows and fill up to 32 rows and a multiple of 32 elements with
    zeros."""
    f = Function(name, _STRIP_ARGS)
    size, padded = f.mul("%k", 2), f.mul(f.round_up("%k", STEP_TERMS), 2)
    with f.loop(0, STRIP_ROWS) as row:
        dst = f.at("%dst", f.mul(row.i, "%dst_ld"))
        f.do(f"call void @llvm.memset.p0.i64(ptr {dst}, i8 0, i64 {padded}, i1 false)")
        with f.when(f.cmp("slt", row.i, "%mr")):
            src = f.at("%src", f.mul(row.i, "%ld"))
            f.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {dst}, ptr {src}, i64 {size}, i1 false)")
    return f.text()


def _turned_strip(shape: Shape, name: str, zeros: str) -> str:
    """As `_strip`, from a matrix stored [K, M]: squares of 16 pairs along K by 16 rows are transposed in registers."""
    f = Function(name, _STRIP_ARGS)
    edge = f.alloca(TILE_ROWS * TILE_ROWS, "i32")
    with f.loop(0, f.round_up("%k", STEP_TERMS), STEP_TERMS) as k, f.loop(0, STRIP_ROWS, TILE_ROWS) as group:
        whole = f.cmp("sle", f.add(group.i, TILE_ROWS), "%mr")
        # Pairs of rows k, k + 1 as vectors over 16 rows of the result; zeros beyond the matrix.
        with f.loop(0, TILE_ROWS) as pair:
            at_k = f.add(k.i, f.mul(pair.i, 2))
            row = f.at(f.at("%src", f.mul(at_k, "%ld")), f.mul(group.i, 2))
            has_first, has_second = f.cmp("slt", at_k, "%k"), f.cmp("slt", f.add(at_k, 1), "%k")
            line = f.at(edge, f.mul(pair.i, 64))
            first = str(f.pick(f.both(has_first, whole), row, f"@{zeros}", "ptr"))
            second = str(f.pick(f.both(has_second, whole), f.at(row, "%ld"), f"@{zeros}", "ptr"))
            f.store("<16 x i32>", load_across(f, shape, "bf16", (first, second), TILE_ROWS), line)
            with f.when(f.let(f"xor i1 {whole}, true", "t")):
                with f.loop(0, f.sub("%mr", group.i)) as i:
                    offset = f.mul(i.i, 2)
                    first = str(f.pick(has_first, f.at(row, offset), f"@{zeros}", "ptr"))
                    second = str(f.pick(has_second, f.at(f.at(row, "%ld"), offset), f"@{zeros}", "ptr"))
                    f.store("i32", load_across(f, shape, "bf16", (first, second), 1), f.at(line, f.mul(i.i, 4)))
        out = f.at(f.at("%dst", f.mul(group.i, "%dst_ld")), f.mul(k.i, 2))
        _transpose(f, "i32", edge, 64, out, "%dst_ld", 0)
    return f.text()


def _transpose(f: Function, ty: str, src: str, sld: Value, dst: str, dld: Value, bias: str | int) -> None:
    """A 16 x 16 square from `src` to `dst`; `bias`: floats to add to the rows of `src`, or 0."""
    with f.loop(0, TILE_ROWS, 4) as row:
        rows = []
        for r in range(4):
            index = f.add(row.i, r)
            value = f.load(f"<16 x {ty}>", f.at(src, f.mul(index, sld)))
            if isinstance(bias, str):
                add = f.splat(f.load("float", f.at(bias, f.mul(index, 4))), "float", TILE_ROWS)
                value = f.let(f"fadd <16 x float> {value}, {add}")
            rows.append(value)
        column = f.at(dst, f.mul(row.i, 4))
        for t, value in enumerate(transpose_lanes(f, rows, ty, TILE_ROWS)):
            for q in range(0, TILE_ROWS, 4):
                piece = f.shuffle(value, value, ty, TILE_ROWS, range(q, q + 4))
                f.store(f"<4 x {ty}>", piece, f.at(column, f.mul(dld, q + t)))


def _transpose_sums(shape: Shape, name: str) -> str:
    """`name(src, sld, dst, columns, bias)`: 32 rows of sums, plus a bias for each row, to [columns][32]."""
    f = Function(name, [("ptr", "src"), ("i64", "sld"), ("ptr", "dst"), ("i64", "columns"), ("ptr", "bias")])
    with f.loop(0, "%columns", TILE_ROWS) as column, f.loop(0, STRIP_ROWS, TILE_ROWS) as row:
        src = f.at(f.at("%src", f.mul(row.i, "%sld")), f.mul(column.i, 4))
        dst = f.at(f.at("%dst", f.mul(column.i, STRIP_ROWS * 4)), f.mul(row.i, 4))
        _transpose(f, "float", src, "%sld", dst, STRIP_ROWS * 4, f.at("%bias", f.mul(row.i, 4)))
    return f.text()


class _Block:
    """Writes the block function; the attributes are values in scope of the loops below."""

    def __init__(self, plan: AmxPlan, symbol: str, block_args: tuple[tuple[str, str], ...]):
        self.plan, self.symbol, self.spec = plan, symbol, plan.spec
        self.f = Function(f"{symbol}_block", block_args, plain=True)
        self.can_swap = plan.spec.trans_b and not plan.spec.trans_a

    def text(self) -> str:
        f, plan = self.f, self.plan
        begin_tiles(f, self.symbol)
        self._choose_sides()
        self.bias, self.left, self.right, self.sums, self.turned = (f.at("%scratch", o) for o in plan.offsets.values())
        blocks = f.max(f.ceil_div("%depth", BLOCKS.depth), 1)
        kc_max = f.max(f.round_up(f.ceil_div("%depth", blocks), STEP_TERMS), STEP_TERMS)
        self.many = f.cmp("sgt", "%depth", kc_max)
        self.sums_ld = BLOCKS.columns * 4
        mc = f.pick(self.many, BLOCKS.sum_rows, f.max(f.sub(self.row_end, self.row_begin), 1))
        with f.loop(self.column_begin, self.column_end, BLOCKS.columns) as jc:
            self.jc, self.nc = jc.i, f.min(BLOCKS.columns, f.sub(self.column_end, jc.i))
            f.do(f"call void @llvm.memset.p0.i64(ptr {self.bias}, i8 0, i64 {BLOCKS.columns * 4}, i1 false)")
            with f.when(f.both(self.has_bias, self.not_swapped)):
                self._load_bias(self.jc, self.nc)
            with f.loop(self.row_begin, self.row_end, mc) as ic:
                end = f.min(f.add(ic.i, mc), self.row_end)
                with f.loop(0, f.max("%depth", 1), kc_max) as pc:
                    self.pc, self.kc = pc.i, f.max(f.min(kc_max, f.sub("%depth", pc.i)), 0)
                    self.steps = f.ceil_div(self.kc, STEP_TERMS)
                    self.is_first = f.cmp("eq", pc.i, 0)
                    self.is_last = f.cmp("sge", f.add(pc.i, self.kc), "%depth")
                    self._pack_right()
                    with f.loop(ic.i, end, STRIP_ROWS) as strip:
                        self._strip(strip.i, f.min(STRIP_ROWS, f.sub(end, strip.i)), ic.i)
        f.do("call void @llvm.x86.tilerelease()")
        return f.text()

    def _choose_sides(self) -> None:
        f = self.f
        lda, ldb = f.mul("%lda", 2), f.mul("%ldb", 2)
        self.has_bias = f.let("icmp ne ptr %bias, null", "t")
        self.left_matrix, self.left_ld, self.right_matrix, self.right_ld = "%a", lda, "%b", ldb
        self.row_begin, self.row_end, self.column_begin, self.column_end = "%m0", "%m1", "%n0", "%n1"
        self.swapped, self.not_swapped = "false", "true"
        if self.can_swap:
            # Packing A and transposing C against packing B.
            m, n = f.sub("%m1", "%m0"), f.sub("%n1", "%n0")
            cheaper = f.cmp("slt", f.mul(m, f.add("%depth", f.mul(n, 2))), f.mul(n, "%depth"))
            s = self.swapped = f.both(f.cmp("sle", m, BLOCKS.swap_rows), cheaper)
            self.not_swapped = f.let(f"xor i1 {s}, true", "t")
            self.left_matrix, self.right_matrix = (str(f.pick(s, *x, "ptr")) for x in (("%b", "%a"), ("%a", "%b")))
            self.left_ld, self.right_ld = f.pick(s, ldb, lda), f.pick(s, lda, ldb)
            self.row_begin, self.row_end = f.pick(s, "%n0", "%m0"), f.pick(s, "%n1", "%m1")
            self.column_begin, self.column_end = f.pick(s, "%m0", "%n0"), f.pick(s, "%m1", "%n1")

    def _load_bias(self, first: Value, count: Value) -> None:
        f = self.f
        source = f.at("%bias", f.mul(first, ELEMENT_BYTES[self.spec.bias_type]))
        f.do(f"call void @{self.symbol}_bias(ptr {source}, i64 0, ptr {self.bias}, i64 0, i64 1, i64 {count})")

    def _panel(self, j: Value) -> str:
        """A packed panel: pairs of K, padded to whole steps, by 32 columns."""
        return self.f.at(self.right, self.f.mul(j, self.f.mul(self.steps, STEP_TERMS * 2)))

    def _pack_right(self) -> None:
        f = self.f
        k_stride, column_stride = (2, self.right_ld) if self.spec.trans_b else (self.right_ld, 2)
        origin = f.at(self.right_matrix, f.mul(self.pc, k_stride))
        pairs = f.ceil_div(self.kc, 2)
        missing = f.sub(f.mul(self.steps, TILE_ROWS), pairs)
        with f.loop(0, self.nc, STRIP_ROWS) as j:
            source = f.at(origin, f.mul(f.add(self.jc, j.i), column_stride))
            n = f.min(f.sub(self.nc, j.i), STRIP_ROWS)
            panel = self._panel(j.i)
            args = f"ptr {source}, i64 {self.right_ld}, i64 {self.kc}, i64 {n}, ptr {panel}"
            f.do(f"call void @{self.symbol}_pack_b({args})")
            rest = f.at(panel, f.mul(pairs, STRIP_ROWS * 4))
            f.do(f"call void @llvm.memset.p0.i64(ptr {rest}, i8 0, i64 {f.mul(missing, STRIP_ROWS * 4)}, i1 false)")

    def _strip(self, i: str, mr: Value, first_row: str) -> None:
        f, symbol = self.f, self.symbol
        row_stride, k_stride = (2, self.left_ld) if self.spec.trans_a else (self.left_ld, 2)
        left = f.at(f.at(self.left_matrix, f.mul(i, row_stride)), f.mul(self.pc, k_stride))
        strip_ld = BLOCKS.depth * 2 + 64
        tall = f.cmp("sgt", mr, TILE_ROWS)
        copies = "true"
        if not self.spec.trans_a:
            ragged = f.let(f"icmp ne i64 {f.let(f'and i64 {self.kc}, {STEP_TERMS - 1}')}, 0", "t")
            rows = f.pick(tall, STRIP_ROWS, TILE_ROWS)
            copies = f.either(ragged, f.cmp("ne", mr, rows))
        with f.when(copies):
            args = f"ptr {left}, i64 {self.left_ld}, i64 {mr}, i64 {self.kc}, ptr {self.left}, i64 {strip_ld}"
            f.do(f"call void @{symbol}_strip({args})")
        a = f.pick(copies, self.left, left, "ptr")
        ars = f.pick(copies, strip_ld, self.left_ld)
        kernel = f.pick(tall, f"@{symbol}_tile32", f"@{symbol}_tile16", "ptr")
        row = f.at(self.sums, f.pick(self.many, f.mul(f.sub(i, first_row), self.sums_ld), 0))
        with f.loop(0, self.nc, STRIP_ROWS) as j:
            offset = f.mul(j.i, 4)
            sums = f.at(row, offset)
            init = f.pick(self.is_first, f.at(self.bias, offset), sums, "ptr")
            args = f"ptr {a}, i64 {ars}, i64 0, ptr {self._panel(j.i)}, i64 {STRIP_ROWS * 4}, ptr {init}"
            args += f", i64 {f.pick(self.is_first, 0, self.sums_ld)}, ptr {sums}, i64 {self.sums_ld}"
            f.do(f"call void ({KERNEL_TYPES}) {kernel}({args}, i64 {self.steps}, i64 {mr}, i64 {STRIP_ROWS})")
        with f.when(self.is_last):
            if not self.can_swap:
                self._finish(row, self.sums_ld, i, mr, self.jc, self.nc)
                return
            with f.choose(self.swapped) as branch:
                self._turn(row, i, mr)
                self._finish(self.turned, STRIP_ROWS * 4, self.jc, self.nc, i, mr)
                branch.otherwise()
                self._finish(row, self.sums_ld, i, mr, self.jc, self.nc)

    def _turn(self, row: str, i: str, mr: Value) -> None:
        """Transpose a strip's sums and add the bias, which belongs to its rows."""
        f = self.f
        strip_bias = f.alloca(STRIP_ROWS, "float")
        f.do(f"call void @llvm.memset.p0.i64(ptr {strip_bias}, i8 0, i64 {STRIP_ROWS * 4}, i1 false)")
        with f.when(self.has_bias):
            source = f.at("%bias", f.mul(i, ELEMENT_BYTES[self.spec.bias_type]))
            f.do(f"call void @{self.symbol}_bias(ptr {source}, i64 0, ptr {strip_bias}, i64 0, i64 1, i64 {mr})")
        args = f"ptr {row}, i64 {self.sums_ld}, ptr {self.turned}, i64 {self.nc}, ptr {strip_bias}"
        f.do(f"call void @{self.symbol}_turn({args})")

    def _finish(self, tile: str, tile_ld: int, row: Value, rows: Value, column: Value, columns: Value) -> None:
        """The epilogue, or the conversion into C, for a rectangle of C whose sums are at `tile`."""
        f, spec = self.f, self.spec
        with f.choose(f.let("icmp ne ptr %epilogue, null", "t")) as branch:
            bounds = f"i64 {row}, i64 {f.add(row, rows)}, i64 {column}, i64 {f.add(column, columns)}"
            f.do(f"call void %epilogue(ptr %ctx, i64 %batch, {bounds}, ptr {tile}, i64 {tile_ld // 4})")
            branch.otherwise()
            if not spec.tile:
                size = ELEMENT_BYTES[spec.c_type]
                ldc = f.mul("%ldc", size)
                out = f.at(f.at("%c", f.mul(row, ldc)), f.mul(column, size))
                args = f"ptr {tile}, i64 {tile_ld}, ptr {out}, i64 {ldc}, i64 {rows}, i64 {columns}"
                f.do(f"call void @{self.symbol}_store({args})")
