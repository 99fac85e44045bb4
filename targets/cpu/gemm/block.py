"""The loops around the register tiles: one thread's rectangle of one matrix product.

    for jc over columns, NC at a time             (the packed block of B, KC x NC, stays in the second-level cache)
      for ic over rows, MC at a time              (all rows at once unless K is cut and the sums live in scratch memory)
        for pc over K, KC at a time
          pack B[pc, jc] into panels              (not if B is read in place)
          for i over rows, one register tile high (its KC-long strip of A stays in the first-level cache)
            pack A[i, pc]                         (only if A needs conversion; a transposed A is packed for several i
            at once) for j over the panels: the kernel
            finish the strip: epilogue or conversion to the type of C, after the last pc

Three forms share these loops and differ in kernel, block sizes and whether something is packed: outer products over
packed panels (any shape), dot products for few rows with B stored [N, K], and whole rows of B for a single row with B
stored [K, N].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....passes.cost.machine.prices import prices
from .convert import convert_rows
from .digits import digits_of, pack_digits
from .ir import Function, Value
from .kernels import KERNEL_TYPES, dot_kernel, tile_kernel, vector_kernel
from .pack import column_sums, pack_a_rows, pack_b_columns, pack_rows, pack_windows, panel_at, widen_panels
from .runs import read_window, write_table
from .spec import BYTES, ELEMENT_BYTES, LLVM_TYPE, GemmSpec, Shape

BLOCK_ARGS = (
    *(("ptr", name) for name in ("a", "b", "c")),
    *(("i64", name) for name in ("lda", "ldb", "ldc", "depth", "m0", "m1", "n0", "n1")),
    ("ptr", "bias"),
    ("ptr", "epilogue"),
    ("ptr", "ctx"),
    ("i64", "batch"),
    ("ptr", "scratch"),
)
"""Matrices of one batch entry; strides in elements; `depth` is K; the rectangle [m0, m1) x [n0, n1)."""
BLOCK_TYPES = ", ".join(ty for ty, _ in BLOCK_ARGS)


@dataclass(frozen=True)
class GemmBlocks:
    """How much of a product a thread has at once. `units`: the longest K block, in units of 4 bytes; `short_units` that of
    products whose results are as wide as their sums, which lose as little as the library's so, and of a transposed A: the block of B is
    wide, and A is packed less often; `columns`: the widest block. `unpacked_rows`: so many
    rows of A do without packing B: stored [N, K], they are computed as dot products; stored [K, N], they read B in place; `in_place_rows`:
    the same of B stored [K, N] whose rows are no more than `near_bytes`, a page, apart. `dot_depth`, `dot_columns`: a block of dot
    products; `vector_columns`: of a single row."""

    units: int
    short_units: int
    columns: int
    unpacked_rows: int
    in_place_rows: int
    near_bytes: int
    dot_depth: int
    dot_columns: int
    vector_columns: int


BLOCKS = prices("cpu_product_blocks", GemmBlocks)
TILE_BYTES = 192 * 1024
"""Scratch for unfinished sums when C cannot hold them."""
TABLE_ENTRIES = 10
"""Entries of the tables from "rows left" (capped) to the kernel that comes next."""


class BlockPlan:
    """The constants of a spec's loops and the layout of one thread's scratch memory."""

    def __init__(self, spec: GemmSpec):
        self.spec = spec
        self.shape = shape = Shape(spec)
        isa = shape.isa
        self.row_grain = isa.rows
        self.group = 8 * isa.rows
        self.direct = spec.c_type == spec.acc and not spec.tile
        short = spec.trans_a or (self.direct and spec.acc != "i32")
        self.units_max = (BLOCKS.short_units if short else BLOCKS.units) * 4 // shape.acc_bytes
        masked = isa.masks and (min(shape.element, shape.b_element) >= 4 or isa.masks16)
        dot = (masked or isa.tail_copies) and not spec.trans_a
        self.special = ("dot" if dot else "") if spec.trans_b else "vector"
        if spec.windows or spec.panels or (spec.ordered and spec.trans_b):
            self.special = ""
        self.in_place_b = not spec.trans_b and not spec.panels and spec.dtype == spec.b_type == spec.acc
        """Rows of a transposed A that are packed together."""
        halves = isa.halves and shape.k_unit == 1
        grain = shape.lanes // 2 if halves else shape.lanes
        widths = range(grain, shape.width + 1, grain) if isa.masks else [v * grain for v in (isa.vectors // 4, isa.vectors // 2) if v]
        self.narrow = list(widths)
        """Columns of the tiles for the last ones; always of full height, by masked loads and stores or through a tile on the stack."""
        self.bias_bytes = BLOCKS.vector_columns * shape.acc_bytes
        self.a_row_bytes = self.units_max * shape.packed_bytes + 64
        self.a_bytes = self.a_row_bytes * (self.group if spec.trans_a else isa.rows)
        if self.special == "dot":
            rows = max(rows for rows, _ in self.dot_tiles())
            self.a_bytes = max(self.a_bytes, rows * (BLOCKS.dot_depth * shape.packed_bytes + 2 * isa.vector_bytes))
        panel = self.units_max * shape.width * shape.packed_bytes
        self.b_bytes = 0 if shape.reads_panels else max(isa.cache_block, panel)
        if shape.is_shifted and self.b_bytes:
            self.b_bytes += BLOCKS.columns * shape.packed_bytes
        self.tile_bytes = 0 if self.direct else TILE_BYTES
        self.offsets = {"bias": 0, "a": self.bias_bytes, "b": self.bias_bytes + self.a_bytes}
        self.offsets["tile"] = self.offsets["b"] + self.b_bytes
        self.scratch_bytes = self.offsets["tile"] + self.tile_bytes + 256

    @property
    def packs_rows(self) -> bool:
        """Rows of A are packed: to be converted, for their last unit, or because they lie far apart."""
        return self.special == "dot" or self.shape.converts or self.shape.k_unit > 1

    def dot_shape(self, rows: int) -> Shape:
        """How so many rows are multiplied in dot products where B is bytes, which are turned into floats otherwise: one row as digits, two
        of bfloats as floats, since making pairs of bfloats of B is most of the work."""
        spec, isa = self.spec, self.shape.isa
        if spec.b_type not in BYTES or spec.dtype in BYTES:
            return self.shape
        if rows == 1 and isa.byte_dot:
            return Shape(GemmSpec("i8", trans_b=True, isa=spec.isa, b=spec.b_type), digits_of(spec.dtype))
        if rows <= 2 and self.shape.pairs:
            return Shape(replace(spec, isa=isa.in_floats))
        return self.shape

    def dot_bytes(self, rows: int) -> int:
        """Bytes of an element of so many packed rows."""
        shape = self.dot_shape(rows)
        return shape.digits or shape.packed_bytes // shape.k_unit

    def dot_depth(self, rows: int) -> int:
        """Elements of K that so many rows go through at once: they share the room for packed rows."""
        return BLOCKS.dot_depth * (self.shape.packed_bytes // self.dot_bytes(rows)) * max(r for r, _ in self.dot_tiles()) // rows

    def tile_rows(self) -> list[int]:
        """Rows of the next register tile by rows left."""
        if self.shape.isa.rows == 4:
            return [0, 1, 2, 2, 4, 4, 4, 4, 4, 4]
        return [0, 1, 2, 2, 4, 4, 6, 6, 4, 6]

    def dot_tiles(self) -> list[tuple[int, int]]:
        """Rows of A, and rows of B in as many streams, that are multiplied at a time in dot products, by rows left."""
        one, two, four, eight = (1, 4), (2, 4), (4, 4 if self.shape.is_shifted else 6), (8, 3)
        return [one, one, two, four, four, eight, eight, eight, eight, eight]


def block_functions(plan: BlockPlan, symbol: str) -> list[str]:
    """The block function `<symbol>_block` (arguments `BLOCK_ARGS`) and everything it calls."""
    spec, shape, isa = plan.spec, plan.shape, plan.shape.isa
    out = [f"@{symbol}_zeros = internal constant [256 x i8] zeroinitializer, align 64\n"]
    rows = plan.tile_rows()
    for count in sorted(set(rows) - {0}):
        out.append(tile_kernel(shape, f"{symbol}_tile{count}", count))
    for columns in plan.narrow:
        out.append(tile_kernel(shape, f"{symbol}_narrow{columns}", isa.rows, columns, clamp=True))
    names = [f"{symbol}_tile{max(count, 1)}" for count in rows]
    out += _tables(symbol, "tile", names, rows, [shape.width] * TABLE_ENTRIES)
    if plan.special == "dot":
        tiles = plan.dot_tiles()
        shapes = {plan.dot_shape(r): f"{symbol}_pack_a_{plan.dot_shape(r).unit}" for r, _ in tiles}
        out += [pack_digits(one, name, spec.dtype) if one.digits else pack_a_rows(one, name) for one, name in shapes.items()]
        for r, c in sorted(set(tiles)):
            out.append(dot_kernel(plan.dot_shape(r), f"{symbol}_dot{r}x{c}", r, c))
        names = [f"{symbol}_dot{r}x{c}" for r, c in tiles]
        out += _tables(symbol, "dot", names, [r for r, _ in tiles], [BLOCKS.dot_columns] * TABLE_ENTRIES)
        out.append(_table(f"{symbol}_dot_packs", "ptr", [f"@{shapes[plan.dot_shape(r)]}" for r, _ in tiles]))
        out.append(_table(f"{symbol}_dot_bytes", "i64", [plan.dot_bytes(r) for r, _ in tiles]))
        out.append(_table(f"{symbol}_dot_depths", "i64", [plan.dot_depth(r) for r, _ in tiles]))
    if plan.special == "vector":
        out.append(vector_kernel(shape, f"{symbol}_vector"))
        out += _tables(symbol, "vector", [f"{symbol}_vector"] * TABLE_ENTRIES, [1] * TABLE_ENTRIES, [BLOCKS.vector_columns] * TABLE_ENTRIES)
    if shape.reads_panels:
        pass  # B is packed
    elif spec.panels:
        out.append(widen_panels(shape, f"{symbol}_pack_b"))
    elif spec.trans_b:
        out.append(pack_b_columns(shape, f"{symbol}_pack_b"))
    else:
        out.append(pack_rows(shape, f"{symbol}_pack_b", f"{symbol}_zeros", shape.width, spec.b_type))
    if shape.is_shifted:
        out.append(column_sums(shape, f"{symbol}_column_sums", shape.width))
    if spec.trans_a:
        out.append(pack_rows(shape, f"{symbol}_pack_a", f"{symbol}_zeros", plan.group, spec.dtype, shape.is_shifted))
    elif plan.packs_rows:
        out.append((pack_windows if spec.windows else pack_a_rows)(shape, f"{symbol}_pack_a"))
    moves = {(spec.bias_type, spec.acc), (spec.acc, spec.acc)}
    if not plan.direct and not spec.tile:
        moves.add((spec.acc, spec.c_type))
    for source, target in sorted(moves):
        out.append(convert_rows(f"{symbol}_move_{source}_{target}", isa, source, target, spec.acc))
    out.append(_Block(plan, symbol).text())
    return out


def _tables(symbol: str, form: str, kernels: list[str], rows: list[int], columns: list[int]) -> list[str]:
    pointers = [f"@{name}" for name in kernels]
    parts = (("kernels", "ptr", pointers), ("rows", "i64", rows), ("columns", "i64", columns))
    return [_table(f"{symbol}_{form}_{name}", ty, values) for name, ty, values in parts]


def _table(name: str, ty: str, values: Sequence[Value]) -> str:
    return f"@{name} = internal constant [{TABLE_ENTRIES} x {ty}] [{', '.join(f'{ty} {value}' for value in values)}]\n"


class _Block:
    """Writes the block function; the attributes are values in scope of the loops below."""

    def __init__(self, plan: BlockPlan, symbol: str):
        self.plan, self.symbol = plan, symbol
        self.spec, self.shape = plan.spec, plan.shape
        self.f = Function(f"{symbol}_block", BLOCK_ARGS, plain=True)

    def text(self) -> str:
        f, plan, shape = self.f, self.plan, self.shape
        self.lda, self.ldb = f.mul("%lda", shape.element), f.mul("%ldb", shape.b_element)
        self.ldc = f.mul("%ldc", ELEMENT_BYTES[self.spec.c_type])
        self.bias_row, self.a_pack, self.b_pack, self.tile = (f.at("%scratch", plan.offsets[name]) for name in ("bias", "a", "b", "tile"))
        if not shape.isa.masks:
            self.edge = f.alloca(shape.isa.rows * shape.width, LLVM_TYPE[self.spec.acc])
        self.m = f.sub("%m1", "%m0")
        if self.spec.windows:
            self.window = read_window(f, "%lda")
            self.rows_at = f.alloca(shape.isa.rows + 2, "i64")
        self._choose_form()
        self._choose_blocks()
        with f.loop("%n0", "%n1", self.nc_max) as jc:
            self.jc = jc.i
            self.nc = f.min(self.nc_max, f.sub("%n1", jc.i))
            self._fill_bias_row()
            with f.loop("%m0", "%m1", self.mc_max) as ic:
                self.i_first, self.i_end = ic.i, f.min(f.add(ic.i, self.mc_max), "%m1")
                with f.loop(0, f.max("%depth", 1), self.kc_max) as pc:
                    self.pc = pc.i
                    self.kc = f.min(self.kc_max, f.sub("%depth", pc.i))
                    self.units = f.ceil_div(self.kc, shape.k_unit)
                    self.is_first = f.cmp("eq", pc.i, 0)
                    self.is_last = f.cmp("sge", f.add(pc.i, self.kc), "%depth")
                    self._pack_b()
                    self._strips()
        return f.text()

    def _strips(self) -> None:
        """All rows of this block, one register tile high at a time."""
        f, group_rows = self.f, self.plan.group
        if not self.spec.trans_a:
            with f.loop(self.i_first, self.i_end) as strip:
                strip.step = self._strip(strip.i, self.i_end)
            return
        with f.loop(self.i_first, self.i_end, group_rows) as group:
            end = f.min(f.add(group.i, group_rows), self.i_end)
            self._pack_group_of_a(group.i, end)
            with f.loop(group.i, end) as strip:
                strip.step = self._strip(strip.i, end, group.i)

    def _choose_form(self) -> None:
        f, plan = self.f, self.plan
        if plan.special == "dot":
            self.special = f.cmp("sle", self.m, BLOCKS.unpacked_rows)
        elif plan.special == "vector":
            wide = f.cmp("sge", f.sub("%n1", "%n0"), 4 * self.shape.lanes)
            self.special = f.both(f.cmp("eq", self.m, 1), wide)
        else:
            self.special = "false"
        self.not_special = f.let(f"xor i1 {self.special}, true", "t")
        self.in_place_b = "false"
        if plan.in_place_b:
            near = f.cmp("sle", self.ldb, BLOCKS.near_bytes)
            few = f.cmp("sle", self.m, f.pick(near, BLOCKS.in_place_rows, BLOCKS.unpacked_rows))
            packed = f.cmp("eq", self.ldb, self.shape.width * self.shape.b_element)  # rows of a tile behind each other are a panel
            self.in_place_b = f.either(few, packed)

    def _choose_blocks(self) -> None:
        f, plan, shape = self.f, self.plan, self.shape
        units = f.ceil_div("%depth", shape.k_unit)
        per_block = f.max(f.ceil_div(units, f.max(f.ceil_div(units, plan.units_max), 1)), 1)
        if self.spec.panels:  # blocks begin with a unit of a panel
            per_block = f.round_up(per_block, shape.panel_unit // shape.k_unit)
        fitting = f.div(shape.isa.cache_block // (shape.packed_bytes * shape.width), per_block)
        nc = f.mul(f.min(f.max(fitting, 1), max(BLOCKS.columns // shape.width, 1)), shape.width)
        self.kc_max, self.nc_max = f.mul(per_block, shape.k_unit), nc
        if plan.special:
            if plan.special == "dot":
                blocks = f.max(f.ceil_div("%depth", self._load_entry("dot_depths", "i64", self.m)), 1)
                kc, nc = f.max(f.round_up(f.ceil_div("%depth", blocks), 64), 64), BLOCKS.dot_columns
            else:
                kc, nc = self.kc_max, BLOCKS.vector_columns
            self.kc_max = f.pick(self.special, kc, self.kc_max)
            self.nc_max = f.pick(self.special, nc, self.nc_max)
        self.tile_ld = self.ldc if plan.direct else f.mul(self.nc_max, shape.acc_bytes)
        self.mc_max, self.many_blocks = self.m, "false"
        if not plan.direct:
            self.many_blocks = f.cmp("sgt", "%depth", self.kc_max)
            fitting = f.div(f.div(TILE_BYTES, self.tile_ld), shape.isa.rows)
            self.mc_max = f.pick(self.many_blocks, f.mul(f.max(fitting, 1), shape.isa.rows), self.m)

    def _fill_bias_row(self) -> None:
        f, shape, spec = self.f, self.shape, self.spec
        size = f.mul(f.round_up(self.nc, shape.width), shape.acc_bytes)
        f.do(f"call void @llvm.memset.p0.i64(ptr {self.bias_row}, i8 0, i64 {size}, i1 false)")
        with f.when(f.let("icmp ne ptr %bias, null", "t")):
            bias = f.at("%bias", f.mul(self.jc, ELEMENT_BYTES[spec.bias_type]))
            self._move(spec.bias_type, spec.acc, bias, 0, self.bias_row, 0, 1, self.nc)
        if shape.is_shifted and shape.reads_panels:
            with f.loop(0, self.nc, shape.width) as j:
                panel, start = panel_at(f, shape, f.add(self.jc, j.i), 0), f.at(self.bias_row, f.mul(j.i, shape.acc_bytes))
                units = f.ceil_div("%depth", shape.panel_unit)
                f.do(f"call void @{self.symbol}_column_sums(ptr {panel}, i64 {shape.panel_step}, i64 {units}, ptr {start}, ptr {start})")

    def _move(self, source: str, target: str, src: str, sld: Value, dst: str, dld: Value, rows: Value, columns: Value) -> None:
        name = f"{self.symbol}_move_{source}_{target}"
        args = f"ptr {src}, i64 {sld}, ptr {dst}, i64 {dld}, i64 {rows}, i64 {columns}"
        self.f.do(f"call void @{name}({args})")

    def _b_at(self, column: Value) -> str:
        """B at (pc, column)."""
        f = self.f
        if self.spec.panels:
            return panel_at(f, self.shape, column, f.div(self.pc, self.shape.panel_unit))
        k, n = (self.shape.b_element, self.ldb) if self.spec.trans_b else (self.ldb, self.shape.b_element)
        return f.at(f.at("%b", f.mul(self.pc, k)), f.mul(column, n))

    def _panel(self, j: Value) -> str:
        f, shape = self.f, self.shape
        size = f.mul(f.add(self.units, 1 if shape.is_shifted else 0), shape.packed_bytes)
        return f.at(self.b_pack, f.mul(j, size))

    def _pack_b(self) -> None:
        f, shape = self.f, self.shape
        if shape.reads_panels:
            return
        ld = shape.panel_step if self.spec.panels else self.ldb
        with f.when(self.not_special), f.loop(0, self.nc, shape.width) as j:
            nr = f.min(f.sub(self.nc, j.i), shape.width)
            narrow = f.cmp("slt", nr, shape.width)
            with f.when(f.either(narrow, f.let(f"xor i1 {self.in_place_b}, true", "t"))):
                source = self._b_at(f.add(self.jc, j.i))
                args = f"ptr {source}, i64 {ld}, i64 {self.kc}, i64 {nr}, ptr {self._panel(j.i)}"
                f.do(f"call void @{self.symbol}_pack_b({args})")
                if shape.is_shifted:
                    panel, step = self._panel(j.i), shape.width * shape.packed_bytes
                    args = f"ptr @{self.symbol}_zeros, ptr {f.at(panel, f.mul(self.units, step))}"
                    f.do(f"call void @{self.symbol}_column_sums(ptr {panel}, i64 {step}, i64 {self.units}, {args})")

    def _load_entry(self, table: str, ty: str, rows: Value) -> str:
        """What a table has for so many rows."""
        f = self.f
        index = f.min(rows, TABLE_ENTRIES - 1)
        return f.load(ty, f.at(f"@{self.symbol}_{table}", f.mul(index, 8)), 8)

    def _table(self, what: str, ty: str, index: Value) -> str:
        f, plan = self.f, self.plan
        table = f"@{self.symbol}_tile_{what}"
        if plan.special:
            table = str(f.pick(self.special, f"@{self.symbol}_{plan.special}_{what}", table, "ptr"))
        return f.load(ty, f.at(table, f.mul(index, 8)), 8)

    def _strip(self, i: str, end: Value, group: str = "") -> str:
        """Rows from i on, at most to `end`, over all panels of this block; the number of rows that were done."""
        f, plan, shape, spec = self.f, self.plan, self.shape, self.spec
        left = f.sub(end, i)
        index = f.min(left, TABLE_ENTRIES - 1)
        kernel = self._table("kernels", "ptr", index)
        mr = str(f.min(self._table("rows", "i64", index), left))
        columns = self._table("columns", "i64", index)
        a, ars, acs = self._strip_of_a(i, left, mr, group)
        if plan.direct:
            row = f.at(f.at("%c", f.mul(i, self.ldc)), f.mul(self.jc, shape.acc_bytes))
        else:
            kept = f.mul(f.sub(i, self.i_first), self.tile_ld)
            row = f.at(self.tile, f.pick(self.many_blocks, kept, 0))
        init = str(f.pick(self.is_first, self.bias_row, row, "ptr"))
        ild = f.pick(self.is_first, 0, self.tile_ld)
        steps = f.pick(self.special, self.kc, self.units)
        with f.loop(0, self.nc, columns) as j:
            nr = f.min(columns, f.sub(self.nc, j.i))
            whole = f.cmp("eq", nr, columns)
            offset = f.mul(j.i, shape.acc_bytes)
            b, bs = self._b_for_kernel(j.i, whole)
            common = f"ptr {a}, i64 {ars}, i64 {acs}, ptr {b}, i64 {bs}"

            def call(kernel: str, init: str, ild: Value, c: str, cld: Value, common: str = common, nr: Value = nr) -> None:
                args = f"{common}, ptr {init}, i64 {ild}, ptr {c}, i64 {cld}, i64 {steps}, i64 {mr}, i64 {nr}"
                f.do(f"call void ({KERNEL_TYPES}) {kernel}({args})")

            with f.choose(f.either(whole, self.special)) as branch:
                call(kernel, f.at(init, offset), ild, f.at(row, offset), self.tile_ld)
                branch.otherwise()
                narrow = kernel
                for width in reversed(plan.narrow):
                    narrow = str(f.pick(f.cmp("sle", nr, width), f"@{self.symbol}_narrow{width}", narrow, "ptr"))
                if shape.isa.masks:
                    call(narrow, f.at(init, offset), ild, f.at(row, offset), self.tile_ld)
                else:
                    edge_ld = shape.width * shape.acc_bytes
                    self._move(spec.acc, spec.acc, f.at(init, offset), ild, self.edge, edge_ld, mr, nr)
                    call(narrow, self.edge, edge_ld, self.edge, edge_ld)
                    self._move(spec.acc, spec.acc, self.edge, edge_ld, f.at(row, offset), self.tile_ld, mr, nr)
        self._finish(i, mr, row)
        return mr

    def _a_at(self, i: Value) -> str:
        """A at (i, pc)."""
        f = self.f
        row, k = (self.shape.element, self.lda) if self.spec.trans_a else (self.lda, self.shape.element)
        return f.at(f.at("%a", f.mul(i, row)), f.mul(self.pc, k))

    def _pack_group_of_a(self, i: str, end: Value) -> None:
        f = self.f
        with f.when(self.not_special):
            args = f"ptr {self._a_at(i)}, i64 {self.lda}, i64 {self.kc}, i64 {f.sub(end, i)}, ptr {self.a_pack}"
            f.do(f"call void @{self.symbol}_pack_a({args})")

    def _windows(self, i: str, left: Value, mr: str) -> tuple[str, Value, Value]:
        """The windows of a strip. Packed, they stay in the first-level cache, where all windows at once would not."""
        f, shape = self.f, self.shape
        write_table(f, shape, self.rows_at, self.window, i, left, self.pc)
        table = f.let(f"ptrtoint ptr {self.rows_at} to i64")
        if shape.reads_windows:
            return "%a", table, shape.element
        row_bytes = f.add(f.round_up(f.mul(self.kc, shape.packed_bytes // shape.k_unit), 64), 64)
        args = f"ptr %a, i64 {table}, i64 {mr}, i64 {self.kc}, ptr {self.a_pack}, i64 {row_bytes}"
        f.do(f"call void @{self.symbol}_pack_a({args})")
        return self.a_pack, row_bytes, shape.packed_bytes

    def _strip_of_a(self, i: str, left: Value, mr: str, group: str) -> tuple[str, Value, Value]:
        """Where the kernel reads A: pointer, stride of rows, stride of steps. `left`: rows of A from here on, `mr` of which it takes."""
        f, plan, shape, spec = self.f, self.plan, self.shape, self.spec
        if spec.windows:
            return self._windows(i, left, mr)
        source = self._a_at(i)
        if spec.trans_a:
            pack = f.at(self.a_pack, f.mul(f.sub(i, group), shape.packed_bytes))
            if not plan.special:
                return pack, shape.packed_bytes, plan.group * shape.packed_bytes
            step = f.pick(self.special, self.lda, plan.group * shape.packed_bytes)
            return str(f.pick(self.special, source, pack, "ptr")), shape.packed_bytes, step
        if not plan.packs_rows:
            return source, self.lda, shape.element
        if shape.converts or shape.is_shifted:
            use_pack = "true"
        elif shape.k_unit > 1:
            use_pack = f.cmp("ne", f.let(f"and i64 {self.kc}, {shape.k_unit - 1}"), 0)
        else:
            use_pack = "false"
        use_pack = f.pick(self.special, "true" if plan.special == "dot" else "false", use_pack, "i1")
        pack, element = f"@{self.symbol}_pack_a", shape.packed_bytes // shape.k_unit
        if plan.special == "dot":
            pack = f.pick(self.special, self._load_entry("dot_packs", "ptr", left), pack, "ptr")
            element = f.pick(self.special, self._load_entry("dot_bytes", "i64", left), element)
        row_bytes = f.add(f.mul(f.round_up(self.kc, 64), element), 64)
        with f.when(str(use_pack)):
            args = f"ptr {source}, i64 {self.lda}, i64 {mr}, i64 {self.kc}, ptr {self.a_pack}, i64 {row_bytes}"
            f.do(f"call void {pack}({args})")
        step = f.pick(self.special, shape.element, shape.element * shape.k_unit)
        return (
            str(f.pick(str(use_pack), self.a_pack, source, "ptr")),
            f.pick(str(use_pack), row_bytes, self.lda),
            f.pick(str(use_pack), shape.packed_bytes, step),
        )

    def _b_for_kernel(self, j: Value, whole: str) -> tuple[str, Value]:
        f, plan, shape = self.f, self.plan, self.shape
        if shape.reads_panels:
            return self._b_at(f.add(self.jc, j)), shape.panel_step
        b, bs = self._panel(j), shape.width * shape.packed_bytes
        in_place = "false"
        if plan.in_place_b:
            in_place = f.both(self.in_place_b, whole)
        if plan.special:
            in_place = self.special if in_place == "false" else f.either(self.special, in_place)
        if in_place == "false":
            return b, bs
        direct = self._b_at(f.add(self.jc, j))
        return str(f.pick(in_place, direct, b, "ptr")), f.pick(in_place, self.ldb, bs)

    def _finish(self, i: str, mr: str, row: str) -> None:
        f, plan, shape, spec = self.f, self.plan, self.shape, self.spec
        with f.when(self.is_last), f.choose(f.let("icmp ne ptr %epilogue, null", "t")) as branch:
            rows = f"i64 {i}, i64 {f.add(i, mr)}, i64 {self.jc}, i64 {f.add(self.jc, self.nc)}"
            ld = f.div(self.tile_ld, shape.acc_bytes)
            f.do(f"call void %epilogue(ptr %ctx, i64 %batch, {rows}, ptr {row}, i64 {ld})")
            branch.otherwise()
            if not plan.direct and not spec.tile:
                bytes_c = ELEMENT_BYTES[spec.c_type]
                out = f.at(f.at("%c", f.mul(i, self.ldc)), f.mul(self.jc, bytes_c))
                self._move(spec.acc, spec.c_type, row, self.tile_ld, out, self.ldc, mr, self.nc)
