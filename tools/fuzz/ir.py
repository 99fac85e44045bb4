"""IR of every level, changed at random: what its interpreter gives is what the rest of the pipeline has to give.

A random program is taken to any place of a pipeline.  There constants, operations, kinds of reductions, the order of loops and
schedules are changed, and transforms of loops are put into what is left of the pipeline.  The interpreter of the level is the judge.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.context import Context
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Operation

from ...dialects import load_dialects, loop, nd
from ...dialects.loop import kinds_attr
from ...dialects.nd.base import ExprsAttr
from ...dialects.nd.pointwise import OPS, BinaryOp, UnaryOp
from ...dialects.nd.types import FLOATS
from ...lowering.fx.decompositions import decomposition_table
from ...lowering.fx_to_nd import import_graph
from ...passes.manager.errors import PassError
from ...passes.manager.instrumentation import Instrumentation, print_ir
from ...passes.manager.pass_manager import Pipeline, Stage, entry_text, is_deliberate, run
from ...passes.manager.pipelines import default_pipeline, parse_pipeline
from ...passes.manager.verify import InvalidIR, verify_ir
from ..check.rounding import INEXACT, Noise, Rounding, unexplained, unit_of
from ..ir_parser import parse_file
from ..opt.inputs import random_inputs, with_own_memory
from ..opt.run import kept_arguments
from ..opt.run_ir import run_module
from ..opt.verify_results import SOON, difference, scalar_operations
from .case import FuzzError
from .values import HALVES
from .writer import Writer

FLOAT_UNARY = ("neg", "abs", "relu", "tanh", "sigmoid", "sin", "cos", "exp", "square", "sqrt", "log1p", "erf")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
BODY_BINARY = (arith.AddfOp, arith.SubfOp, arith.MulfOp, arith.MaximumfOp, arith.MinimumfOp)
BODY_UNARY = (math.ExpOp, math.SinOp, math.CosOp, math.TanhOp, math.SqrtOp, math.ErfOp, math.AbsFOp)
REDUCTIONS = ("sum", "max", "min")
NUMBERS = (0.0, 1.0, -1.0, 0.5, 2.0, -3.25)
TRANSFORMS = (
    "loop-interchange{{order={order}}}", "loop-tile{{sizes={sizes}}}", "loop-collapse{{loops=0,1}}", "loop-expand{{axis=0 by={by}}}",
    "loop-vectorize{{axis={axis} lanes={lanes}}}", "loop-vectorize{{axis=none}}", "loop-split-reduction{{parts={by} part={part}}}",
    "loop-unroll{{limit={by} part={part}}}", "loop-hoist", "loop-tile{{sizes={sizes} part={part}}}", "loop-narrow-index",
    "loop-interchange{{order=1,0 part={part}}}",
)  # fmt: skip
MAX_SAMPLES = 32
"""Runs with other roundings before a difference counts: near a pole few of them are NaN or infinite."""


@dataclass(frozen=True)
class IRCase:
    """A module, the passes that are left, and what was changed."""

    kind: str
    seed: int
    text: str
    pipeline: str
    changes: str

    suffix = "mlir"

    def source(self, note: str = "", device: str = "cpu") -> str:
        """A file for opt-tool, with the command line that shows the failure."""
        line = shlex.join(["opt-tool", "FILE", "-p", self.pipeline, "--verify-results"])
        lines = [*note.splitlines(), line, f"changed: {self.changes or 'nothing'}"]
        return "".join(f"// {one}\n" for one in lines) + self.text

    def verdict(self, device: str = "cpu") -> tuple[str, str]:
        """("right" | "wrong" | "skipped", why)."""
        from .check import on

        with on(device):
            return self._verdict()

    def _verdict(self) -> tuple[str, str]:
        ctx = load_dialects(Context())
        module, _ = parse_file(self.text, "case.mlir", ctx)
        try:
            inputs = random_inputs(module, None, self.seed)
            want = results(module, ctx, inputs, interpret=True)
        except Exception as error:  # what the program raises about its inputs
            return "skipped", f"the interpreter refuses it: {type(error).__name__}: {error}"
        lowered = module.clone()
        try:
            run(parse_pipeline(self.pipeline), lowered, ctx, Instrumentation(verify_each=True))
        except PassError as error:
            cause = error.__cause__
            refused = not error.after and (cause is None or (isinstance(cause, Exception) and is_deliberate(cause)))
            return ("skipped" if refused and self.changes else "wrong"), str(error)
        try:
            got = results(lowered, ctx, inputs, interpret=False)
        except Exception as error:
            return "wrong", f"the lowered program raises {type(error).__name__}: {error}"
        wrong = {name: text for name in want if (text := difference(want[name], got[name]))}
        samples = [want]
        while wrong and len(samples) <= MAX_SAMPLES:  # each widens what rounding explains
            samples.append(rounded(module, ctx, inputs, len(samples) - 1))
            wrong = {n: t for n, t in wrong.items() if _is_unexplained(got[n], [s[n] for s in samples])}
        return ("wrong", "; ".join(f"{name}: {text}" for name, text in wrong.items())) if wrong else ("right", "")


def _is_unexplained(got: Any, samples: list[Any]) -> bool:
    if not isinstance(got, torch.Tensor):
        return True
    near = torch.isclose(got.double(), samples[0].double(), rtol=1e-4, atol=1e-4, equal_nan=True)
    return bool((unexplained(got, samples) & ~near).any())


def results(module: ModuleOp, ctx: Context, inputs: list[Any], interpret: bool) -> dict[str, Any]:
    """What a module returns and leaves in its arguments."""
    given = [with_own_memory(value) for value in inputs]
    kept = kept_arguments(module, None)
    returned = run_module(module, ctx, given, interpret=interpret)
    found = {f"result {k}": value for k, value in enumerate(returned)}
    return found | {f"argument {k}": v for k, v in enumerate(given) if k in kept and isinstance(v, torch.Tensor)}


def rounded(module: ModuleOp, ctx: Context, inputs: list[Any], seed: int) -> dict[str, Any]:
    """What a module gives from inputs some ulps away, and with other roundings of what it computes."""
    with Rounding(seed, (0.5, 1.0, 2.0, 4.0)[seed % 4]):
        return results(module, ctx, perturbed(inputs, seed), interpret=True)


def perturbed(inputs: list[Any], seed: int) -> list[Any]:
    """The same inputs, floats some ulps away."""
    noise = Noise(seed)

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype not in INEXACT or value.is_complex():
            return value
        made = with_own_memory(value)
        if all(s or n < 2 for n, s in zip(value.shape, value.stride(), strict=True)):
            made.copy_(value.double() * noise.factors(value, 8 * unit_of(value.dtype)))
        return made

    return [one(value) for value in inputs]


# The changes: each yields the ways to change an operation, as (what, how).

Change = tuple[str, Callable[[], None]]


def changes_of(op: Operation, rng: random.Random) -> Iterator[Change]:
    """Ways to change one operation that leave its types as they are."""
    kind = op.name
    if isinstance(op, (nd.FullOp, arith.ConstantOp)) and isinstance(op.value, FloatAttr):
        value: Any = op.properties["value"]
        if value.value.data == value.value.data and abs(value.value.data) < 1e6:  # not what begins a maximum
            new = FloatAttr(rng.choice(NUMBERS), value.type)
            yield f"{value} becomes {new}", lambda: op.properties.update(value=new)
    is_float = bool(op.results) and getattr(op.results[0].type, "element_type", op.results[0].type) in FLOATS
    if is_float and isinstance(op, UnaryOp) and kind[3:] in FLOAT_UNARY:
        yield from _swapped(op, [OPS[n] for n in FLOAT_UNARY if n in OPS], rng)
    if is_float and isinstance(op, BinaryOp) and kind[3:] in BINARY:
        yield from _swapped(op, [OPS[n] for n in BINARY], rng)
    if isinstance(op, BODY_BINARY):
        yield from _swapped(op, BODY_BINARY, rng)
    if isinstance(op, BODY_UNARY):
        yield from _swapped(op, BODY_UNARY, rng)
    if isinstance(op, (*BODY_BINARY, BinaryOp)) and len(op.operands) == 2 and op.operands[0].type == op.operands[1].type:
        yield f"the operands of {kind} change places", lambda: _exchange(op)
    if isinstance(op, nd.ReduceOp) and op.kind.data in REDUCTIONS and is_float:
        new_kind = rng.choice(REDUCTIONS)
        yield f"{kind} {op.kind.data} becomes {new_kind}", lambda: op.properties.update(kind=StringAttr(new_kind))
    if isinstance(op, loop.ReduceOp) and len(op.results) == 1 and is_float and str(op.kinds.data[0]).strip(chr(34)) in REDUCTIONS:
        new_kind = rng.choice(REDUCTIONS)
        yield f"{kind} becomes {new_kind}", lambda: op.properties.update(kinds=kinds_attr([new_kind]))
    if isinstance(op, loop.NestOp) and len(op.loop_sizes) > 1:
        yield "two loops of a nest change places", lambda: _interchange(op, rng)
    if isinstance(op, (loop.NestOp, loop.ForOp, loop.ReduceOp)):
        yield from _schedules(op, rng)


def _swapped(op: Operation, classes: Any, rng: random.Random) -> Iterator[Change]:
    new_class = rng.choice([c for c in classes if c is not type(op)])

    def swap() -> None:
        types = [r.type for r in op.results]
        new = new_class.create(operands=op.operands, result_types=types, properties=op.properties, location=op.location)
        assert op.parent is not None
        op.parent.insert_op_before(new, op)
        for old, result in zip(op.results, new.results, strict=True):
            old.replace_all_uses_with(result)
        op.detach()
        op.erase()

    yield f"{op.name} becomes {new_class.name}", swap


def _exchange(op: Operation) -> None:
    op.operands = [op.operands[1], op.operands[0]]


def _interchange(nest: loop.NestOp, rng: random.Random) -> None:
    """Loops of a nest run in any order."""
    a, b = rng.sample(range(len(nest.loop_sizes)), 2)
    sizes = list(nest.loop_sizes)
    sizes[a], sizes[b] = sizes[b], sizes[a]
    nest.properties["sizes"] = ExprsAttr.get(sizes)
    first, second = nest.indices[a], nest.indices[b]
    uses = [(use, second) for use in first.uses] + [(use, first) for use in second.uses]
    for use, value in uses:
        use.operation.operands[use.index] = value


def _schedules(op: Any, rng: random.Random) -> Iterator[Change]:
    """Which loop runs along the lanes, how many lanes there are, whether threads share a loop."""
    loops = len(op.loop_sizes)
    vector = rng.choice([*(IntegerAttr(k, i64) for k in range(loops)), StringAttr("none")])
    lanes = IntegerAttr(2 ** rng.randrange(8), i64)
    if isinstance(op, loop.NestOp):
        table = dict(op.schedule.data) if isinstance(op.schedule, DictionaryAttr) else {}
        key, value = rng.choice([("vector", vector), ("lanes", lanes), ("grain", IntegerAttr(1, i64))])
        yield f"schedule {key} = {value}", lambda: op.properties.update(schedule=DictionaryAttr(table | {key: value}))
    elif not isinstance(vector, StringAttr):
        yield f"lanes of {op.name} = {lanes}", lambda: op.attributes.update(vector=vector, lanes=lanes)


def mutated(module: ModuleOp, rng: random.Random, count: int) -> list[str]:
    """Change a module at up to `count` places; what was done."""
    done = []
    for _ in range(count):
        places = [op for op in module.walk() if op is not module]
        op = rng.choice(places)
        found = list(changes_of(op, rng))
        if not found:
            continue
        before = module.clone()
        what, change = rng.choice(found)
        change()
        try:
            verify_ir(module)
        except InvalidIR:
            _restore(module, before)
            continue
        done.append(what)
    return done


def _restore(module: ModuleOp, before: ModuleOp) -> None:
    module.detach_region(module.body)
    module.add_region(before.detach_region(before.body))


def ir_case(seed: int, device: str = "cpu") -> IRCase:
    """The changed IR of a seed."""
    rng = random.Random(seed)
    module = imported(seed)
    ctx = load_dialects(Context())
    target = {"cpu": "cpu", "gpu": "gpu"}.get(device, "small_tiles")
    entries = [e for stage in default_pipeline(target).stages for e in stage.entries]
    names = [p.name for p in default_pipeline(target).passes()]
    last = names.index("mem-to-cpu" if device == "cpu" else "mem-to-tt")
    cut = rng.randrange(last + 1)
    run(Pipeline("first", [Stage("", entries[:cut])]), module, ctx)
    done = mutated(module, rng, rng.randrange(40))
    rest = [entry_text(e) for e in entries[cut:]]
    transforms = [_transform(rng) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
    place = next((k for k, p in enumerate(rest) if p.startswith(("loop-to-mem", "mem-plan"))), 0)
    if "nd-to-loop" in " ".join(rest[:place]) or cut > names.index("nd-to-loop"):
        rest[place:place] = transforms
        done += transforms
    return IRCase("ir", seed, print_ir(module), ",".join(rest), "; ".join(done))


def _transform(rng: random.Random) -> str:
    return rng.choice(TRANSFORMS).format(
        order=rng.choice(("1,0", "-1,0", "0,2,1")), sizes=rng.choice(("2,4", "8", "1,16", "0,8", "3,5")), by=rng.choice((1, 2, 3, 8)),
        axis=rng.choice((0, 1, -1)), lanes=rng.choice((1, 2, 8, 64)), part=rng.randrange(3),
    )  # fmt: skip


def imported(seed: int) -> ModuleOp:
    """The IR of a program of writer.py that has no 16-bit floats, whose sums the levels round at different places."""
    for attempt in range(50):
        writer = Writer(seed + attempt * 1_000_003, updates=attempt % 3 == 2)
        program = writer.write(steps=6 + seed % 15)
        if any(v.tensor.dtype in HALVES for v in writer.values) or "int" in program.text.replace("dtype=torch.int64", ""):
            continue
        inputs = program.inputs(seed)
        try:
            mode = "symbolic" if program.dynamic else "fake"
            gm = make_fx(functionalize(program.function()), decomposition_table=decomposition_table(), tracing_mode=mode)(*inputs)
            module = import_graph(gm, inputs).module
            run_module(module, load_dialects(Context()), random_inputs(module, None, seed), interpret=True)
        except Exception:  # what needs values, or random indices
            continue
        if scalar_operations(module) < SOON:
            return module
    raise FuzzError(f"no program of seed {seed} can be taken apart")
