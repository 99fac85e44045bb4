"""What an entry computes: calls of known functions, elements of arrays, constants of the module, size expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ...dialects import host
from ...dialects.expr import Add, Const, Expr, FloorDiv, Max, Min, Mod, Mul, Sym, as_expr
from ..cpu.emit.text import FunctionText, ModuleText
from .description import OBJECTS, SYMBOL, ItemTable
from .gpu.runtime_ir import GPU_FUNCTIONS
from .runtime.runtime_ir import FUNCTIONS

_SIGNATURES: dict[str, str] = {
    **FUNCTIONS,
    **GPU_FUNCTIONS,
    "PyBool_FromLong": "ptr (i64)",
    "PyErr_Occurred": "ptr ()",
    "PyEval_RestoreThread": "void (ptr)",
    "PyEval_SaveThread": "ptr ()",
    "PyFloat_AsDouble": "double (ptr)",
    "PyFloat_FromDouble": "ptr (double)",
    "PyList_New": "ptr (i64)",
    "PyList_SetItem": "i32 (ptr, i64, ptr)",
    "PyLong_AsLongLong": "i64 (ptr)",
    "PyLong_FromLongLong": "ptr (i64)",
    "PyObject_IsTrue": "i32 (ptr)",
    "PyObject_Vectorcall": "ptr (ptr, ptr, i64, ptr)",
    "PySequence_GetItem": "ptr (ptr, i64)",
    "Py_DecRef": "void (ptr)",
    "Py_IncRef": "void (ptr)",
    "aoti_torch_clone_preserve_strides": "i32 (ptr, ptr)",
    "aoti_torch_delete_tensor_object": "i32 (ptr)",
    "aoti_torch_empty_strided": "i32 (i64, ptr, ptr, i32, i32, i32, ptr)",
    "aoti_torch_get_data_ptr": "i32 (ptr, ptr)",
    "aoti_torch_get_size": "i32 (ptr, i64, ptr)",
    "aoti_torch_get_stride": "i32 (ptr, i64, ptr)",
    "aoti_torch_grad_mode_is_enabled": "i8 ()",
    "aoti_torch_grad_mode_set_enabled": "void (i8)",
    "aoti_torch_item_int64": "i32 (ptr, ptr)",
    "aoti_torch_new_tensor_handle": "i32 (ptr, ptr)",
    "stepwell_wrap": "ptr (ptr)",
    "torch_exception_get_what_without_backtrace": "ptr ()",
    "llvm.memset.p0.i64": "void (ptr, i8, i64, i1)",
    "llvm.smax.i64": "i64 (i64, i64)",
    "llvm.smin.i64": "i64 (i64, i64)",
}


class EntryCode(FunctionText):
    """Text of LLVM instructions, one after the other; each size and each constant array once."""

    signatures: ClassVar[Mapping[str, str]] = _SIGNATURES
    """The functions that `call` knows, with their LLVM types."""

    def __init__(self, module: ModuleText, items: ItemTable, symbol: str = SYMBOL):
        super().__init__(module, symbol, {})
        self.items = items
        self.sizes: dict[Expr, str] = {}
        self.constants: dict[tuple[int, ...], str] = {}
        self._launchers: dict[str, int] = {}

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(self, name: str, *arguments: str) -> str:
        """Append a call of a known function; gives its result, or "" when it has none."""
        result, _, types = self.signatures[name].partition(" (")
        types = types[:-1]
        self.module.declare(name, result, types)
        pairs = ", ".join(f"{t} {a}" for t, a in zip(types.split(", "), arguments, strict=True)) if types else ""
        text = f"call {result} @{name}({pairs})"
        if result == "void":
            self.do(text)
            return ""
        return self.let(text)

    def at(self, base: str, index: int, type: str = "ptr") -> str:
        """The address of element `index` of an array."""
        return base if index == 0 else self.let(f"getelementptr {type}, ptr {base}, i64 {index}")

    def load(self, address: str, type: str = "ptr") -> str:
        return self.let(f"load {type}, ptr {address}")

    def item(self, kind: str, value: object) -> str:
        """The Python object of an entry of the object table (a borrowed reference)."""
        return self.item_at(self.items.place(kind, value))

    def item_at(self, place: int) -> str:
        return self.let(f"load ptr, ptr getelementptr (ptr, ptr @{OBJECTS}, i64 {place})")

    def function_place(self, name: str) -> int:
        """The place of a function of the module in the table of those that steps call."""
        return self._launchers.setdefault(name, len(self._launchers))

    def launcher(self, kernel: str, types: Sequence[str]) -> int:
        """The place of the function that calls a kernel with arguments of these types out of an array of 8-byte words."""
        known = len(self._launchers)
        found = self.function_place(f"{kernel}.launch")
        if found == known:
            self.module.declare(kernel, "void", ", ".join(types))
            lines, arguments = [], []
            for k, type in enumerate(types):
                memory = "i64" if type == "i1" else type
                lines += [f"  %p{k} = getelementptr i64, ptr %words, i64 {k}", f"  %w{k} = load {memory}, ptr %p{k}"]
                if type == "i1":
                    lines.append(f"  %b{k} = trunc i64 %w{k} to i1")
                arguments.append(f"{type} %{'b' if type == 'i1' else 'w'}{k}")
            self.module.functions.append(
                "\n".join([
                    f"define internal void @{kernel}.launch(ptr %words) noinline optnone #0 {{", *lines,
                    f"  call void @{kernel}({', '.join(arguments)})", "  ret void", "}", "",
                ])
            )  # fmt: skip
        return found

    # -- arrays of numbers ---------------------------------------------------------------------------------------------

    def words(self, values: Sequence[Expr]) -> str:
        """The address of an array of i64: a constant of the module when all are constants, scratch memory otherwise."""
        if not values:
            return "null"
        if all(value.is_const for value in values):
            return self.constant_words([int(value) for value in values])
        registers = [self.size(value) for value in values]
        return self.scratch("i64", registers)

    def scratch(self, type: str, registers: Sequence[str]) -> str:
        """Fresh memory on the stack that holds these values."""
        base = self.alloca(f"[{max(1, len(registers))} x {type}]", 8)
        for k, register in enumerate(registers):
            self.do(f"store {type} {register}, ptr {self.at(base, k, type)}")
        return base

    def constant_words(self, values: Sequence[int], type: str = "i64") -> str:
        """The address of a constant array."""
        key = (int(type[1:]), *values)
        found = self.constants.get(key)
        if found is None:
            found = self.constants[key] = f"@stepwell_numbers{len(self.constants)}"
            body = ", ".join(f"{type} {int(v)}" for v in values)
            self.module.globals.append(f"{found} = internal constant [{len(values)} x {type}] [{body}]")
        return found

    def text_constant(self, text: str) -> str:
        """The address of a C string."""
        data = text.encode()
        name = f"@stepwell_text{len(self.constants)}"
        self.constants[(-1, *data)] = name
        escaped = "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data)
        self.module.globals.append(f'{name} = internal constant [{len(data) + 1} x i8] c"{escaped}\\00"')
        return name

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def size(self, expr: Expr) -> str:
        """The value of a size expression as an i64 (computed once)."""
        if expr.is_const:
            return str(int(expr))
        found = self.sizes.get(expr)
        if found is None:
            found = self.sizes[expr] = self._compute(expr)
        return found

    def _compute(self, expr: Expr) -> str:
        if isinstance(expr, Sym):
            raise KeyError(f"size symbol {expr} is used before host.bind defines it")
        if isinstance(expr, FloorDiv):
            return self._divide(self.size(expr.lhs), self.size(expr.rhs), "quotient")
        if isinstance(expr, Mod):
            return self._divide(self.size(expr.lhs), self.size(expr.rhs), "remainder")
        if isinstance(expr, (Min, Max)):
            name = "llvm.smin.i64" if isinstance(expr, Min) else "llvm.smax.i64"
            return self._fold(name, [self.size(arg) for arg in expr.args])
        if isinstance(expr, (Add, Mul)) or not isinstance(expr, Const):
            return self._linear(expr)
        raise TypeError(f"unknown size expression {expr}")

    def _fold(self, name: str, values: Sequence[str]) -> str:
        total = values[0]
        for value in values[1:]:
            total = self.call(name, total, value)
        return total

    def _linear(self, expr: Expr) -> str:
        total = None
        for term, coefficient in expr.terms:
            value = self._product(term)
            if coefficient != 1:
                value = self.let(f"mul i64 {value}, {coefficient}")
            total = value if total is None else self.let(f"add i64 {total}, {value}")
        assert total is not None
        return total if expr.constant == 0 else self.let(f"add i64 {total}, {expr.constant}")

    def _product(self, term: Expr) -> str:
        if not isinstance(term, Mul):
            return self.size(term)
        total = self.size(term.factors[0])
        for factor in term.factors[1:]:
            total = self.let(f"mul i64 {total}, {self.size(factor)}")
        return total

    def _divide(self, a: str, b: str, wanted: str) -> str:
        """Division that rounds toward minus infinity. A divisor of 0 gives 0, as no branch may trap."""
        zero = self.let(f"icmp eq i64 {b}, 0")
        divisor = self.let(f"select i1 {zero}, i64 1, i64 {b}")
        remainder = self.let(f"srem i64 {a}, {divisor}")
        signs = self.let(f"xor i64 {remainder}, {divisor}")
        opposite = self.let(f"icmp slt i64 {signs}, 0")
        inexact = self.let(f"icmp ne i64 {remainder}, 0")
        adjust = self.let(f"and i1 {opposite}, {inexact}")
        if wanted == "remainder":
            shifted = self.let(f"add i64 {remainder}, {divisor}")
            return self.let(f"select i1 {adjust}, i64 {shifted}, i64 {remainder}")
        quotient = self.let(f"sdiv i64 {a}, {divisor}")
        lower = self.let(f"sub i64 {quotient}, 1")
        return self.let(f"select i1 {adjust}, i64 {lower}, i64 {quotient}")


def launch_words(code: EntryCode, op: host.LaunchOp, memory: Sequence[str], numbers: Sequence[str]) -> list[str]:
    """The words of a launch on a GPU, all i64: the addresses of its tensors, its sizes, its numbers, and for each descriptor that the
    kernel takes the address, the sizes and the strides of what it describes."""
    words = [*memory, *(code.size(size) for size in op.sizes.data), *numbers]
    for one in op.described:
        start = memory[sum(not host.is_number(value.type) for value in op.inputs[: one.operand])]
        if one.offset is not as_expr(0):
            start = code.let(f"add i64 {start}, {code.size(one.offset)}")
        words += [start, *(code.size(e) for e in (*one.sizes, *one.strides))]
    return words
