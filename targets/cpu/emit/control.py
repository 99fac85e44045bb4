"""Control flow: `scf` loops and branches, parallel regions as outlined thunks for libgomp, calls, checks, random
bits."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import cpu
from ....dialects.support.philox import KEY_STEPS, MULTIPLIERS, ROUNDS
from ..symbols import ERROR_SLOT, ERROR_VALUES
from .arith import constant_integer, is_constant, splat_value
from .text import FunctionText, Type, splat, type_of
from .vector import all_true

Handler = Callable[[FunctionText, Operation], None]


def emit_for(f: FunctionText, op: Operation) -> None:
    """scf.for with the test at the bottom, behind one test for no trip at all (none where the bounds are known).

    No pass rotates loops behind the emitter.
    """
    operands = op._operands
    low, high, step = (f.names[v] for v in operands[:3])
    inits = [f.names[v] for v in operands[3:]]
    block = op.regions[0].block
    index, *carried = block.args
    type = type_of(index.type).text
    before, loop, after = f.block, f.label(), f.label()
    known_low, known_high = constant_integer(low), constant_integer(high)
    if known_low is not None and known_high is not None and known_low < known_high:
        f.do(f"br label %{loop}")
        entered = True
    else:
        guard = f.let(f"icmp slt {type} {low}, {high}")
        f.do(f"br i1 {guard}, label %{loop}, label %{after}")
        entered = False
    f.start(loop)
    phis = len(f.lines)
    for argument in block.args:
        f.names[argument] = f.fresh()
        f.lines.append("")
    f.body(block)
    last = block.last_op
    yielded = [f.names[v] for v in last._operands] if isinstance(last, scf.YieldOp) else []
    following = f.let(f"add nsw {type} {f.names[index]}, {step}")
    again = f.let(f"icmp slt {type} {following}, {high}")
    latch = f.block
    f.do(f"br i1 {again}, label %{loop}, label %{after}")
    f.lines[phis] = f"  {f.names[index]} = phi {type} [ {low}, %{before} ], [ {following}, %{latch} ]"
    for i, (argument, init, value) in enumerate(zip(carried, inits, yielded, strict=True)):
        text = type_of(argument.type).text
        f.lines[phis + 1 + i] = f"  {f.names[argument]} = phi {text} [ {init}, %{before} ], [ {value}, %{latch} ]"
    f.start(after)
    for result, init, value in zip(op.results, inits, yielded, strict=True):
        skipped = "" if entered else f"[ {init}, %{before} ], "
        f.set(result, f"phi {type_of(result.type).text} {skipped}[ {value}, %{latch} ]")


def emit_if(f: FunctionText, op: Operation) -> None:
    """scf.if."""
    condition = f.names[op._operands[0]]
    then_label, else_label, after = f.label(), f.label(), f.label()
    branches: list[tuple[str, list[str]]] = []
    has_else = bool(op.regions[1].blocks)
    before = f.block
    f.do(f"br i1 {condition}, label %{then_label}, label %{else_label if has_else else after}")
    for label, region in ((then_label, op.regions[0]), (else_label, op.regions[1])):
        if not region.blocks:
            branches.append((before, []))
            continue
        f.start(label)
        f.body(region.block)
        last = region.block.last_op
        values = [f.names[v] for v in last._operands] if isinstance(last, scf.YieldOp) else []
        branches.append((f.block, values))
        f.do(f"br label %{after}")
    f.start(after)
    (left, left_values), (right, right_values) = branches
    for result, a, b in zip(op.results, left_values, right_values, strict=bool(op.results)):
        f.set(result, f"phi {type_of(result.type).text} [ {a}, %{left} ], [ {b}, %{right} ]")


def emit_while(f: FunctionText, op: Operation) -> None:
    """scf.while."""
    head, body, after = f.label(), f.label(), f.label()
    before_block, after_block = op.regions[0].block, op.regions[1].block
    inits = [f.names[v] for v in op._operands]
    entry = f.block
    f.do(f"br label %{head}")
    f.start(head)
    phis = len(f.lines)
    for argument in before_block.args:
        f.names[argument] = f.fresh()
        f.lines.append("")
    f.body(before_block)
    condition = before_block.last_op
    assert isinstance(condition, scf.ConditionOp)
    flag, *passed = (f.names[v] for v in condition._operands)
    f.do(f"br i1 {flag}, label %{body}, label %{after}")
    f.start(body)
    for argument, value in zip(after_block.args, passed, strict=True):
        f.names[argument] = value
    f.body(after_block)
    last = after_block.last_op
    assert isinstance(last, scf.YieldOp)
    latch = f.block
    f.do(f"br label %{head}")
    for i, (argument, init, value) in enumerate(zip(before_block.args, inits, last._operands, strict=True)):
        text = type_of(argument.type).text
        f.lines[phis + i] = f"  {f.names[argument]} = phi {text} [ {init}, %{entry} ], [ {f.names[value]}, %{latch} ]"
    f.start(after)
    for result, value in zip(op.results, passed, strict=True):
        f.names[result] = value


def _captures(block: Block) -> list[SSAValue]:
    """The values that a block (with everything nested in it) uses and does not define, each once, in order of use."""
    defined: set[SSAValue] = set()
    captured: dict[SSAValue, None] = {}

    def visit(block: Block) -> None:
        defined.update(block.args)
        for op in block.ops:
            for operand in op._operands:
                if operand not in defined:
                    captured[operand] = None
            for region in op.regions:
                for inner in region.blocks:
                    visit(inner)
            defined.update(op.results)

    visit(block)
    return list(captured)


def emit_parallel(f: FunctionText, op: Operation) -> None:
    """cpu.parallel: the body becomes a function of (context, begin, end, chunk); a thunk gives each thread of the
    team its share of [0, n); a small n calls the body right away."""
    module = f.module
    block = op.regions[0].block
    count, grain = (f.names[v] for v in op._operands)
    number = len(module.functions) + f._count
    body_name, thunk_name = f"{f.name}.body{number}", f"{f.name}.thread{number}"

    inner = FunctionText(module, body_name, f.handlers, "internal")
    captured = []
    for value in _captures(block):
        name = f.names[value]
        if is_constant(name):
            inner.names[value] = name
        else:
            captured.append((value, name, type_of(value.type)))
    fields = ["i64", *(type.text for _, _, type in captured)]
    context_type = "{ " + ", ".join(fields) + " }"

    for i, (value, _, type) in enumerate(captured):
        place = inner.let(f"getelementptr {context_type}, ptr %context, i64 0, i32 {i + 1}")
        inner.set(value, f"load {type.text}, ptr {place}")
    for argument, name in zip(block.args, ("%begin", "%end", "%chunk"), strict=False):
        inner.names[argument] = name
    inner.body(block)
    inner.do("ret void")
    inner.finish("ptr %context, i64 %begin, i64 %end, i64 %chunk")
    _emit_thunk(f, thunk_name, body_name)

    context = f.alloca(context_type, 64)
    for i, (name, text) in enumerate([(count, "i64"), *((name, type.text) for _, name, type in captured)]):
        place = f.let(f"getelementptr {context_type}, ptr {context}, i64 0, i32 {i}")
        f.do(f"store {text} {name}, ptr {place}")
    _launch(f, count, grain, context, thunk_name, body_name)


def _emit_thunk(f: FunctionText, thunk_name: str, body_name: str) -> None:
    """What each thread of a team runs: chunks differ by at most one unit."""
    module = f.module
    module.declare("omp_get_thread_num", "i32", "")
    module.declare("omp_get_num_threads", "i32", "")
    thunk = FunctionText(module, thunk_name, f.handlers, "internal")
    count = thunk.let("load i64, ptr %context, align 8")
    team = thunk.let(f"sext i32 {thunk.let('call i32 @omp_get_num_threads()')} to i64")
    thread = thunk.let(f"sext i32 {thunk.let('call i32 @omp_get_thread_num()')} to i64")
    share = thunk.let(f"sdiv i64 {count}, {team}")
    rest = thunk.let(f"srem i64 {count}, {team}")
    module.declare("llvm.smin.i64", "i64", "i64, i64")
    before = thunk.let(f"call i64 @llvm.smin.i64(i64 {thread}, i64 {rest})")
    begin = thunk.let(f"add i64 {thunk.let(f'mul i64 {thread}, {share}')}, {before}")
    one = thunk.let(f"zext i1 {thunk.let(f'icmp slt i64 {thread}, {rest}')} to i64")
    end = thunk.let(f"add i64 {thunk.let(f'add i64 {begin}, {share}')}, {one}")
    thunk.do(f"call void @{body_name}(ptr %context, i64 {begin}, i64 {end}, i64 {thread})")
    thunk.do("ret void")
    thunk.finish("ptr %context")


def _launch(f: FunctionText, count: str, grain: str, context: str, thunk: str, body: str) -> None:
    """Serial below two grains (without asking OpenMP anything), else a team of at most count / grain threads."""
    module = f.module
    module.declare("GOMP_parallel", "void", "ptr, ptr, i32, i32")
    module.declare("omp_get_max_threads", "i32", "")
    some, ask, team, alone, after = (f.label() for _ in range(5))
    f.do(f"br i1 {f.let(f'icmp sgt i64 {count}, 0')}, label %{some}, label %{after}")
    f.start(some)
    module.declare("llvm.smax.i64", "i64", "i64, i64")
    module.declare("llvm.smin.i64", "i64", "i64, i64")
    grain = f.let(f"call i64 @llvm.smax.i64(i64 {grain}, i64 1)")
    two = f.let(f"shl i64 {grain}, 1")
    f.do(f"br i1 {f.let(f'icmp slt i64 {count}, {two}')}, label %{alone}, label %{ask}")
    f.start(ask)
    threads = f.let(f"sext i32 {f.let('call i32 @omp_get_max_threads()')} to i64")
    most = f.let(f"sdiv i64 {count}, {grain}")
    threads = f.let(f"call i64 @llvm.smin.i64(i64 {threads}, i64 {most})")
    f.do(f"br i1 {f.let(f'icmp sgt i64 {threads}, 1')}, label %{team}, label %{alone}")
    f.start(team)
    f.do(f"call void @GOMP_parallel(ptr @{thunk}, ptr {context}, i32 {f.let(f'trunc i64 {threads} to i32')}, i32 0)")
    f.do(f"br label %{after}")
    f.start(alone)
    f.do(f"call void @{body}(ptr {context}, i64 0, i64 {count}, i64 0)")
    f.do(f"br label %{after}")
    f.start(after)


def emit_num_threads(f: FunctionText, op: Operation) -> None:
    """cpu.num_threads."""
    f.module.declare("omp_get_max_threads", "i32", "")
    f.set(op.results[0], f"sext i32 {f.let('call i32 @omp_get_max_threads()')} to i64")


def emit_call(f: FunctionText, op: Operation) -> None:
    """cpu.call; a callee that the module does not define is declared."""
    callee: str = op.properties["callee"].string_value()  # pyright: ignore
    types = [type_of(v.type).text for v in op._operands]
    result = type_of(op.results[0].type).text if op.results else "void"
    f.module.declare(callee, result, ", ".join(types))
    arguments = ", ".join(f"{t} {f.names[v]}" for t, v in zip(types, op._operands, strict=True))
    call = f"call {result} @{callee}({arguments})"
    if op.results:
        f.set(op.results[0], call)
    else:
        f.do(call)


def emit_assert(f: FunctionText, op: Operation) -> None:
    """cpu.assert: the number of the message goes to the error slot, if that is still empty, then the values of its first lane that is
    off beside it."""
    condition, *values = op._operands
    message: str = op.properties["message"].data  # pyright: ignore
    number = f.module.message_id(message if values else message.replace("{", "{{").replace("}", "}}"))
    type = type_of(condition.type)
    good = all_true(f, type, f.names[condition])
    bad, after = f.label(), f.label()
    f.do(f"br i1 {good}, label %{after}, label %{bad}")
    f.start(bad)
    found = f.let(f"cmpxchg ptr @{ERROR_SLOT}, i32 0, i32 {number} monotonic monotonic, align 4")
    if values:
        first = f.label()
        f.do(f"br i1 {f.let(f'extractvalue {{ i32, i1 }} {found}, 1')}, label %{first}, label %{after}")
        f.start(first)
        lane = _first_lane_off(f, type, f.names[condition]) if type.lanes else ""
        for k, value in enumerate(values):
            shown, name = type_of(value.type), f.names[value]
            one = f.let(f"extractelement {shown.text} {name}, i{type.lanes} {lane}") if shown.lanes else name
            f.do(f"store i64 {one}, ptr getelementptr (i64, ptr @{ERROR_VALUES}, i64 {k})")
    f.do(f"br label %{after}")
    f.start(after)


def _first_lane_off(f: FunctionText, type: Type, mask: str) -> str:
    """The number of the first lane of a mask that is off, where one is, in an integer of as many bits as there are lanes."""
    bits = f"i{type.lanes}"
    count = f.module.declare(f"llvm.cttz.{bits}", bits, f"{bits}, i1")
    off = f.let(f"xor {bits} {f.let(f'bitcast {type.text} {mask} to {bits}')}, -1")
    return f.let(f"call {bits} {count}({bits} {off}, i1 true)")


def emit_philox(f: FunctionText, op: Operation) -> None:
    """cpu.philox: ten rounds of two widening multiplications (constants of the paper)."""
    seed, offset, subsequence = op._operands
    wide, word = type_of(offset.type), type_of(op.results[0].type)
    text = wide.text
    low = splat(wide, str(0xFFFFFFFF))
    half = splat(wide, "32")

    # Words live in the low half of 64-bit lanes, above them may be anything: that is what the vector unit multiplies 32
    # by 32 bits from. The mask in front of a product only tells LLVM so, and costs nothing.
    def product(value: str, factor: int) -> tuple[str, str]:
        masked = f.let(f"and {text} {value}, {low}")
        found = f.let(f"mul {text} {masked}, {splat(wide, str(factor))}")
        return found, f.let(f"lshr {text} {found}, {half}")

    def mix(a: str, b: str, key: str) -> str:
        return f.let(f"xor {text} {f.let(f'xor {text} {a}, {b}')}, {splat_value(f, wide, key)}")

    words = []
    for value in (f.names[offset], f.names[subsequence]):
        words += [value, value if value == "zeroinitializer" else f.let(f"lshr {text} {value}, {half}")]
    keys = [f.names[seed], f.let(f"lshr i64 {f.names[seed]}, 32")]
    for round in range(ROUNDS):
        if round:
            keys = [f.let(f"add i64 {key}, {add}") for key, add in zip(keys, KEY_STEPS, strict=True)]
        (low0, high0), (low1, high1) = (product(words[2 * i], factor) for i, factor in enumerate(MULTIPLIERS))
        words = [mix(high1, words[1], keys[0]), low1, mix(high0, words[3], keys[1]), low0]
    for result, value in zip(op.results, words, strict=True):
        f.set(result, f"trunc {text} {value} to {word.text}")


def emit_return(f: FunctionText, op: Operation) -> None:
    """cpu.return."""
    f.do("ret void")


def emit_nothing(f: FunctionText, op: Operation) -> None:
    """Terminators whose values the operation around them has already read."""


HANDLERS: dict[type[Operation], Handler] = {
    scf.ForOp: emit_for,
    scf.IfOp: emit_if,
    scf.WhileOp: emit_while,
    scf.YieldOp: emit_nothing,
    scf.ConditionOp: emit_nothing,
    cpu.ParallelOp: emit_parallel,
    cpu.NumThreadsOp: emit_num_threads,
    cpu.CallOp: emit_call,
    cpu.AssertOp: emit_assert,
    cpu.PhiloxOp: emit_philox,
    cpu.ReturnOp: emit_return,
    cpu.YieldOp: emit_nothing,
}
