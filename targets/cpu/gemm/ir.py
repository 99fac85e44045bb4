"""A small writer of LLVM IR text with structured loops, for the generated matrix kernels.

No optimiser runs behind it (only LLVM's instruction selection does), so it folds integer constants itself, writes loops
with phi nodes instead of stack slots, and leaves vectors explicit. A value is an SSA name (`str`) or a Python `int`
for a constant of type `i64`; every helper without a type in its name works on `i64`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

Value = str | int


class Loop:
    """What a loop body sees: the induction variable `i`, the carried `values`, and afterwards the `results`."""

    def __init__(self, i: str, values: list[str], step: Value):
        self.i = i
        self.step = step
        self.values = values
        self.next: list[Value] = list(values)
        self.results: list[str] = values


class Function:
    """One LLVM function under construction; `text()` gives its definition.

    `plain` asks for LLVM's fast instruction selection: for code that runs rarely and would take long to compile.
    """

    def __init__(self, name: str, args: Sequence[tuple[str, str]], linkage: str = "internal", plain: bool = False):
        self.name = name
        self.args = [f"%{arg}" for _, arg in args]
        params = ", ".join(f"{ty} %{arg}" for ty, arg in args)
        space = f"{linkage} " if linkage else ""
        attributes = "optnone noinline " if plain else ""
        self._header = f'define {space}void @{name}({params}) {attributes}nounwind "prefer-vector-width"="512" {{'
        self._allocas: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self._label = "entry"

    def text(self) -> str:
        return "\n".join([self._header, "entry:", *self._allocas, *self._lines, "  ret void", "}", ""])

    # -- raw text ---------------------------------------------------------------------------------------------------
    def fresh(self, hint: str = "v") -> str:
        self._count += 1
        return f"%{hint}{self._count}"

    def do(self, line: str) -> None:
        self._lines.append("  " + line)

    def let(self, expr: str, hint: str = "v") -> str:
        name = self.fresh(hint)
        self._lines.append(f"  {name} = {expr}")
        return name

    def alloca(self, count: int, ty: str) -> str:
        """Stack space of `count` elements, 64-byte aligned, reserved once at function entry."""
        name = self.fresh("stack")
        self._allocas.append(f"  {name} = alloca [{count} x {ty}], align 64")
        return name

    # -- control ----------------------------------------------------------------------------------------------------
    def _block(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._label = label

    def new_label(self, hint: str) -> str:
        return self.fresh(hint)[1:]

    @contextmanager
    def loop(
        self,
        lo: Value,
        hi: Value,
        step: Value = 1,
        carry: Sequence[tuple[str, Value]] = (),
        at_least_once: bool = False,
    ) -> Iterator[Loop]:
        """`for i in lo..hi by step` with values carried round; `at_least_once` tests at the bottom only.

        The body sets `loop.next` (and may set `loop.step`); after the block `loop.results` are the carried values at
        the exit.
        """
        before, head, latch, done = self._label, self.new_label("head"), self.new_label("latch"), self.new_label("done")
        i, i_next = self.fresh("i"), self.fresh("i")
        names = [self.fresh("c") for _ in carry]
        self.do(f"br label %{head}")
        self._block(head)
        phi_at = len(self._lines)
        body = Loop(i, names, step)
        if not at_least_once:
            inside = self.new_label("body")
            self.do(f"br i1 {self.cmp('slt', i, hi)}, label %{inside}, label %{done}")
            self._block(inside)
        yield body
        self.do(f"br label %{latch}")
        self._block(latch)
        self.do(f"{i_next} = add nsw i64 {i}, {body.step}")
        if at_least_once:
            self.do(f"br i1 {self.cmp('slt', i_next, hi)}, label %{head}, label %{done}")
        else:
            self.do(f"br label %{head}")
        phis = [f"  {i} = phi i64 [ {lo}, %{before} ], [ {i_next}, %{latch} ]"]
        for name, (ty, start), nxt in zip(names, carry, body.next, strict=True):
            phis.append(f"  {name} = phi {ty} [ {start}, %{before} ], [ {nxt}, %{latch} ]")
        self._lines[phi_at:phi_at] = phis
        self._block(done)
        body.results = [str(v) for v in body.next] if at_least_once else names

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Run the block only if the `i1` `condition` holds."""
        inside, done = self.new_label("then"), self.new_label("end")
        self.do(f"br i1 {condition}, label %{inside}, label %{done}")
        self._block(inside)
        yield
        self.do(f"br label %{done}")
        self._block(done)

    @contextmanager
    def choose(self, condition: str) -> Iterator[Branch]:
        """An if/else: the block up to `branch.otherwise()` runs if `condition` holds, the rest if not."""
        yes, no, done = self.new_label("then"), self.new_label("else"), self.new_label("end")
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")
        self._block(yes)
        branch = Branch(self, no, done)
        yield branch
        self.do(f"br label %{done}")
        self._block(done)

    # -- i64 arithmetic, folded where both sides are known -------------------------------------------------------------
    def add(self, a: Value, b: Value) -> Value:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0:
            return b
        return a if b == 0 else self.let(f"add nsw i64 {a}, {b}")

    def sub(self, a: Value, b: Value) -> Value:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.let(f"sub nsw i64 {a}, {b}")

    def mul(self, a: Value, b: Value) -> Value:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 1:
            return b
        return a if b == 1 else self.let(f"mul nsw i64 {a}, {b}")

    def div(self, a: Value, b: Value) -> Value:
        """Quotient of non-negative numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if b == 1 else self.let(f"udiv i64 {a}, {b}")

    def ceil_div(self, a: Value, b: Value) -> Value:
        return self.div(self.add(a, self.sub(b, 1)), b)

    def round_up(self, a: Value, b: int) -> Value:
        return self.mul(self.ceil_div(a, b), b)

    def min(self, a: Value, b: Value) -> Value:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.let(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def max(self, a: Value, b: Value) -> Value:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.let(f"call i64 @llvm.smax.i64(i64 {a}, i64 {b})")

    def cmp(self, relation: str, a: Value, b: Value) -> str:
        return self.let(f"icmp {relation} i64 {a}, {b}", "t")

    def both(self, a: str, b: str) -> str:
        return self.let(f"and i1 {a}, {b}", "t")

    def either(self, a: str, b: str) -> str:
        return self.let(f"or i1 {a}, {b}", "t")

    def pick(self, condition: str, a: Value, b: Value, ty: str = "i64") -> Value:
        return a if a == b else self.let(f"select i1 {condition}, {ty} {a}, {ty} {b}")

    # -- memory -----------------------------------------------------------------------------------------------------
    def at(self, base: str, offset: Value) -> str:
        """`base` moved by `offset` bytes."""
        return base if offset == 0 else self.let(f"getelementptr i8, ptr {base}, i64 {offset}", "p")

    def load(self, ty: str, pointer: str, align: int = 1) -> str:
        return self.let(f"load {ty}, ptr {pointer}, align {align}")

    def store(self, ty: str, value: Value, pointer: str, align: int = 1) -> None:
        self.do(f"store {ty} {value}, ptr {pointer}, align {align}")

    def splat(self, scalar: str, ty: str, lanes: int) -> str:
        if lanes == 1:
            return scalar
        one = self.let(f"insertelement <{lanes} x {ty}> poison, {ty} {scalar}, i64 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.let(f"shufflevector <{lanes} x {ty}> {one}, <{lanes} x {ty}> poison, {zeros}")

    def shuffle(self, a: str, b: str, ty: str, lanes: int, mask: Sequence[int]) -> str:
        picks = ", ".join(f"i32 {k}" for k in mask)
        return self.let(f"shufflevector <{lanes} x {ty}> {a}, <{lanes} x {ty}> {b}, <{len(mask)} x i32> <{picks}>")


class Branch:
    """The handle of `Function.choose`."""

    def __init__(self, function: Function, no: str, done: str):
        self._function, self._no, self._done = function, no, done

    def otherwise(self) -> None:
        self._function.do(f"br label %{self._done}")
        self._function._block(self._no)
