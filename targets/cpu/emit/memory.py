"""Memory operations of `cpu` as LLVM loads, stores, masked intrinsics and atomics."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import i8
from xdsl.ir import Operation

from ....dialects import cpu
from .arith import constant_integer, is_constant
from .casts import from_f32, to_f32
from .text import FunctionText, Type, splat, type_of

Handler = Callable[[FunctionText, Operation], None]


def address(f: FunctionText, base: str, offset: str, element: str) -> str:
    """The name of the address `offset` elements after `base`."""
    if offset == "0":
        return base
    return f.let(f"getelementptr {element}, ptr {base}, i64 {offset}")


def memory_type(type: Type) -> Type:
    """The type in memory: a bool is a byte there."""
    return type_of(cpu.like(type.attr, i8)) if type.kind == "i1" else type


def to_memory(f: FunctionText, type: Type, value: str) -> str:
    """A value as it lies in memory."""
    if type.kind != "i1":
        return value
    return f.let(f"zext {type.text} {value} to {type.of('i8')}")


def from_memory(f: FunctionText, type: Type, value: str) -> str:
    """A value as it is computed with; any byte but 0 is true."""
    if type.kind != "i1":
        return value
    zero = "zeroinitializer" if type.lanes else "0"
    return f.let(f"icmp ne {type.of('i8')} {value}, {zero}")


def _alignment(op: Operation, type: Type) -> int:
    """In bytes; complex numbers of 16 bytes are at multiples of 8 only."""
    attr = op.properties.get("alignment")
    return attr.value.data if attr is not None else min(type.bytes, 8)  # pyright: ignore


def _streaming(f: FunctionText, op: Operation, type: Type, align: int, masked: bool) -> str:
    """The mark of a non-temporal access, where it is a single aligned instruction; otherwise it would be taken
    apart."""
    if "nontemporal" not in op.properties or masked or type.kind == "i1":
        return ""
    whole = type.bytes * max(1, type.lanes)
    return f", !nontemporal {f.module.nontemporal}" if align >= min(whole, f.target.vector_bits // 8) >= 16 else ""


def _full(mask: str) -> bool:
    return mask == "splat (i1 true)"


def emit_load(f: FunctionText, op: Operation) -> None:
    """cpu.load."""
    names = f.names
    operands = op._operands
    result = op.results[0]
    type = type_of(result.type)
    base = address(f, names[operands[0]], names[operands[1]], type.memory)
    align = _alignment(op, type)
    if len(operands) == 2 or _full(names[operands[2]]):
        if type.kind != "i1":
            mark = _streaming(f, op, type, align, False) if op.properties else ""
            f.set(result, f"load {type.text}, ptr {base}, align {align}{mark}")
        else:
            loaded = f.let(f"load {type.of('i8')}, ptr {base}, align {align}")
            names[result] = from_memory(f, type, loaded)
        return
    mask = names[operands[2]]
    other = names[operands[3]] if len(operands) > 3 else splat(type, _zero(type))
    if not type.lanes:
        names[result] = _guarded_load(f, type, base, align, mask, other)
        return
    stored = memory_type(type)
    other = to_memory(f, type, other) if not is_constant(other) or other != "zeroinitializer" else other
    name = f"llvm.masked.load.{stored.suffix}.p0"
    f.module.declare(name, stored.text, f"ptr, {type.of('i1')}, {stored.text}")
    loaded = f.let(
        f"call {stored.text} @{name}(ptr align {align} {base}, {type.of('i1')} {mask}, {stored.text} {other})"
    )
    names[result] = from_memory(f, type, loaded)


def _zero(type: Type) -> str:
    if type.kind in ("f32", "f64"):
        return "0x0000000000000000"
    return {"i1": "false", "ptr": "null"}.get(type.kind, "0")


def _guarded_load(f: FunctionText, type: Type, base: str, align: int, mask: str, other: str) -> str:
    before, inside, after = f.block, f.label(), f.label()
    f.do(f"br i1 {mask}, label %{inside}, label %{after}")
    f.start(inside)
    loaded = f.let(f"load {type.memory}, ptr {base}, align {align}")
    loaded = from_memory(f, type, loaded)
    f.do(f"br label %{after}")
    f.start(after)
    return f.let(f"phi {type.text} [ {other}, %{before} ], [ {loaded}, %{inside} ]")


def emit_store(f: FunctionText, op: Operation) -> None:
    """cpu.store."""
    names = f.names
    operands = op._operands
    type = type_of(operands[0].type)
    value = to_memory(f, type, names[operands[0]])
    base = address(f, names[operands[1]], names[operands[2]], type.memory)
    align = _alignment(op, type)
    stored = type.of(type.memory)
    if len(operands) == 3 or _full(names[operands[3]]):
        mark = _streaming(f, op, type, align, False) if op.properties else ""
        f.do(f"store {stored} {value}, ptr {base}, align {align}{mark}")
        return
    mask = names[operands[3]]
    if not type.lanes:
        inside, after = f.label(), f.label()
        f.do(f"br i1 {mask}, label %{inside}, label %{after}")
        f.start(inside)
        f.do(f"store {stored} {value}, ptr {base}, align {align}")
        f.do(f"br label %{after}")
        f.start(after)
        return
    name = f"llvm.masked.store.{memory_type(type).suffix}.p0"
    f.module.declare(name, "void", f"{stored}, ptr, {type.of('i1')}")
    f.do(f"call void @{name}({stored} {value}, ptr align {align} {base}, {type.of('i1')} {mask})")


def _addresses(f: FunctionText, type: Type, base: str, offsets: str, offset_type: Type) -> str:
    return f.let(f"getelementptr {type.memory}, ptr {base}, {offset_type.text} {offsets}")


def emit_gather(f: FunctionText, op: Operation) -> None:
    """cpu.gather."""
    names = f.names
    operands = op._operands
    result = op.results[0]
    type = type_of(result.type)
    stored = memory_type(type)
    pointers = _addresses(f, type, names[operands[0]], names[operands[1]], type_of(operands[1].type))
    mask = names[operands[2]] if len(operands) > 2 else "splat (i1 true)"
    other = to_memory(f, type, names[operands[3]]) if len(operands) > 3 else "zeroinitializer"
    name = f"llvm.masked.gather.{stored.suffix}.v{type.lanes}p0"
    f.module.declare(name, stored.text, f"{type.of('ptr')}, {type.of('i1')}, {stored.text}")
    loaded = f.let(
        f"call {stored.text} @{name}({type.of('ptr')} align {type.bytes} {pointers}, {type.of('i1')} {mask}, "
        f"{stored.text} {other})"
    )
    names[result] = from_memory(f, type, loaded)


def emit_scatter(f: FunctionText, op: Operation) -> None:
    """cpu.scatter."""
    names = f.names
    operands = op._operands
    type = type_of(operands[0].type)
    stored = memory_type(type)
    value = to_memory(f, type, names[operands[0]])
    pointers = _addresses(f, type, names[operands[1]], names[operands[2]], type_of(operands[2].type))
    mask = names[operands[3]] if len(operands) > 3 else "splat (i1 true)"
    name = f"llvm.masked.scatter.{stored.suffix}.v{type.lanes}p0"
    f.module.declare(name, "void", f"{stored.text}, {type.of('ptr')}, {type.of('i1')}")
    f.do(
        f"call void @{name}({stored.text} {value}, {type.of('ptr')} align {type.bytes} {pointers}, "
        f"{type.of('i1')} {mask})"
    )


def emit_atomic_add(f: FunctionText, op: Operation) -> None:
    """cpu.atomic_add; floats of 8 and 16 bits by a compare-and-swap loop."""
    names = f.names
    value, base, offset = op._operands
    type = type_of(value.type)
    place = address(f, names[base], names[offset], type.memory)
    if not type.packed:
        kind = "fadd" if type.kind in ("f32", "f64") else "add"
        f.let(f"atomicrmw {kind} ptr {place}, {type.text} {names[value]} monotonic, align {type.bytes}")
        return
    addend = to_f32(f, type, names[value])
    element, align = type.element, type.bytes
    first = f.let(f"load atomic {element}, ptr {place} monotonic, align {align}")
    before, loop, after = f.block, f.label(), f.label()
    f.do(f"br label %{loop}")
    f.start(loop)
    seen, found = f.fresh(), f.fresh()
    f.do(f"{seen} = phi {element} [ {first}, %{before} ], [ {found}, %{loop} ]")
    total = from_f32(f, type, f.let(f"fadd float {to_f32(f, type, seen)}, {addend}"))
    pair = f.let(
        f"cmpxchg weak ptr {place}, {element} {seen}, {element} {total} monotonic monotonic, align {align}"
    )
    f.do(f"{found} = extractvalue {{ {element}, i1 }} {pair}, 0")
    done = f.let(f"extractvalue {{ {element}, i1 }} {pair}, 1")
    f.do(f"br i1 {done}, label %{after}, label %{loop}")
    f.start(after)


def emit_local(f: FunctionText, op: Operation) -> None:
    """cpu.local: stack memory at the function's entry."""
    size: int = op.properties["bytes"].value.data  # pyright: ignore
    align: int = op.properties["align"].value.data  # pyright: ignore
    f.names[op.results[0]] = f.alloca(f"[{size} x i8]", align)


def emit_ptr_add(f: FunctionText, op: Operation) -> None:
    """cpu.ptr_add."""
    base, offset = op._operands
    element = type_of(op.properties["element"]).memory
    f.names[op.results[0]] = address(f, f.names[base], f.names[offset], element)


def emit_copy(f: FunctionText, op: Operation) -> None:
    """cpu.copy."""
    target, source, size = (f.names[v] for v in op._operands)
    name = f.module.declare("llvm.memcpy.p0.p0.i64", "void", "ptr, ptr, i64, i1 immarg")
    f.do(f"call void {name}(ptr {target}, ptr {source}, i64 {size}, i1 false)")


def emit_prefetch(f: FunctionText, op: Operation) -> None:
    """cpu.prefetch, for reading."""
    base, offset = op._operands
    place = address(f, f.names[base], f.names[offset], type_of(op.properties["element"]).memory)
    locality = op.properties.get("locality")
    level: int = locality.value.data if locality is not None else 3  # pyright: ignore
    name = f.module.declare("llvm.prefetch.p0", "void", "ptr, i32 immarg, i32 immarg, i32 immarg")
    f.do(f"call void {name}(ptr {place}, i32 0, i32 {level}, i32 1)")


def emit_lanes(f: FunctionText, op: Operation) -> None:
    """cpu.lanes: compare the lane numbers with the clamped count. Bytes where AVX-512 compares them straight into a
    mask register, 32-bit lanes elsewhere, because that is what masked loads want."""
    result = op.results[0]
    lanes = type_of(result.type).lanes
    count = f.names[op._operands[0]]
    known = constant_integer(count) if is_constant(count) else None
    if known is not None:
        if known >= lanes:
            f.names[result] = "splat (i1 true)"
        else:
            f.names[result] = "<" + ", ".join(f"i1 {'true' if i < known else 'false'}" for i in range(lanes)) + ">"
        return
    element = "i8" if f.target.has("avx512bw") and lanes <= 127 else "i32"
    for base, limit in (("smax", 0), ("smin", lanes)):
        f.module.declare(f"llvm.{base}.i64", "i64", "i64, i64")
        count = f.let(f"call i64 @llvm.{base}.i64(i64 {count}, i64 {limit})")
    short = f.let(f"trunc i64 {count} to {element}")
    text = f"<{lanes} x {element}>"
    first = f.let(f"insertelement {text} poison, {element} {short}, i64 0")
    all_lanes = f.let(f"shufflevector {text} {first}, {text} poison, <{lanes} x i32> zeroinitializer")
    numbers = "<" + ", ".join(f"{element} {i}" for i in range(lanes)) + ">"
    f.set(result, f"icmp sgt {text} {all_lanes}, {numbers}")


HANDLERS: dict[type[Operation], Handler] = {
    cpu.LoadOp: emit_load,
    cpu.StoreOp: emit_store,
    cpu.GatherOp: emit_gather,
    cpu.ScatterOp: emit_scatter,
    cpu.AtomicAddOp: emit_atomic_add,
    cpu.LocalOp: emit_local,
    cpu.PtrAddOp: emit_ptr_add,
    cpu.CopyOp: emit_copy,
    cpu.PrefetchOp: emit_prefetch,
    cpu.LanesOp: emit_lanes,
}
