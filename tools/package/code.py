"""The machine code of a package: each program for each target, and what programs share, as images."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...lowering.fx_to_nd.core.metadata import shape_env
from ...passes.manager.instrumentation import print_ir
from ...targets.cpu import features as cpu
from ...targets.cpu.jit import compile_text, object_symbols
from ...targets.cpu.library import function_object, settle, spec_of
from ...targets.host.gpu.runtime_ir import Variant, gpu_runtime_text
from ...targets.host.runtime.runtime_ir import runtime_text
from ...targets.host.selftest import compile_selftest
from ...targets.host.symbols import handle_offset
from ...targets.package import schema
from ...targets.package.errors import PackageError
from ...targets.package.format import PackageFile, Section
from ...targets.package.process import HIP
from ...targets.package.programs import BinaryRecord, BoxRecord, DescriptorRecord, KernelRecord, record_of
from ...targets.triton.gpu import is_portable
from ..backend.compile_graph import build, fitted_pipeline, lower_graph
from ..compiled.compiled import CompiledGraph
from ..debug.compile_log import compile_lock
from .branches import Branches
from .elf_image import exported, link_image

if TYPE_CHECKING:
    from torch.fx import GraphModule
    from xdsl.dialects.builtin import ModuleOp

    from ...passes.manager.pass_manager import Pipeline
    from ...targets.host.description import ProgramDescription
    from ...targets.triton.kernels import Binary, GpuKernel
    from ..backend.compile_graph import Watch
    from ..debug.folder import DebugFolder
    from ..options.options import Options
    from .levels import Level

BASELINES = {"x86_64": ("generic-sse", ""), "aarch64": ("neon", "aarch64")}
"""Machine -> the instruction set of its runtime, which every processor of the kind has, and the target of the sections that hold it."""


def _copied(gm: GraphModule) -> GraphModule:
    """A graph that passes may change; what its nodes say of values is shared."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return torch.fx.GraphModule(gm, graph)


@contextmanager
def _no_new_guards(gm: GraphModule, name: str) -> Iterator[None]:
    """What is compiled inside of the block holds for all sizes of the ranges. PackageError names what it would assume of them."""
    env = shape_env(gm)
    if env is None:
        yield
        return
    frozen, env.frozen, before = env.frozen, False, len(env.guards)
    try:
        yield
    finally:
        env.frozen = frozen
    added = [str(guard.expr) for guard in env.guards[before:]]
    if added:
        raise PackageError(
            f"entry point '{name}': the program would hold for some sizes of the ranges alone, where {' and '.join(added)}; "
            "give the dimension a narrower range, or a fixed size"
        )


@dataclass(frozen=True)
class PackagedBody:
    """A compiled subgraph; it runs where the package is loaded. name: of its program."""

    name: str
    compiled: CompiledGraph

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Subgraphs are called by loaded packages."""
        raise NotImplementedError(f"program {self.name} of a package that is being made")


class CodeSections:
    """Compiles programs and collects the images of a package, level by level; what `levels` share is compiled once."""

    def __init__(self, ir: bool = True, levels: Sequence[Level] = ()) -> None:
        self._keeps_ir = ir
        self._levels = levels
        self._compiled: dict[tuple[str, str], tuple[CompiledGraph, Branches, str]] = {}
        """By entry point and kind of device: for the first level, which has the name behind."""
        self._branches: list[Branches] = []
        """Of the graph that is being compiled, and of its bodies."""
        self._bodies = 0
        self._binaries: dict[tuple[str, str, str], bytes] = {}
        """Of kernels for GPUs, by kind (cubin, hsaco), name and target."""
        self._ptx: dict[tuple[str, str], bytes] = {}
        """Of the best target whose PTX later GPUs take, compressed; the keys are the names and targets of the cubins."""
        self._ir: dict[tuple[str, str], bytes] = {}
        """By name and target, compressed."""
        self._sections: list[tuple[Section, bytes]] = []
        self._level: Level | None = None
        self._machines: set[str] = set()
        self._functions: set[str] = set()

    @contextmanager
    def level(self, level: Level) -> Iterator[None]:
        """Code is made for a target inside of the block; at its end, the functions that its programs share."""
        self._level = level
        self._machines.add(level.target.machine)
        self._functions = set()
        settle()  # functions of the library are made in threads, for the target of the moment
        with compile_lock, _disable_current_modes(), level.in_use():
            yield
            settle()
            self._share()
        self._level = None

    def compile(self, gm: GraphModule, options: Options, name: str) -> CompiledGraph:
        """A graph for the target of the moment; the graph stays as it is. Of one that was compiled for another level, only what differs
        is compiled."""
        assert self._level is not None
        key = name, self._level.device
        if key in self._compiled and (found := self._continued(name, options, *self._compiled[key])) is not None:
            return found
        self._branches.clear()
        self._bodies = 0
        with torch.no_grad(), _no_new_guards(gm, name):
            body = partial(self._body, name, options)
            compiled = lower_graph(_copied(gm), (), options, kind="inference", make=partial(self._make, name), compile_body=body)
        if len(self._branches) == 1 and not self._level.is_gpu:
            self._compiled[key] = compiled, self._branches[0], self._here
        return compiled

    def _body(self, name: str, options: Options, gm: GraphModule) -> PackagedBody:
        """A subgraph of the graph `name`."""
        self._bodies += 1
        label, body = f"{name}.{self._bodies}", partial(self._body, name, options)
        make = partial(self._make, label)
        return PackagedBody(label, lower_graph(gm, (), options, kind="inference-body", make=make, compile_body=body))

    def _continued(self, name: str, options: Options, compiled: CompiledGraph, branches: Branches, first: str) -> CompiledGraph | None:
        """A graph that was compiled for level `first`, for the target of the moment; None where nothing is known of it."""
        assert self._level is not None
        if (rest := branches.rest(self._level)) is None:
            return None
        module, pipeline = rest
        watch = Branches(pipeline, (), self._keeper(name))
        description, code, key = build(module, self._level.device, options, None, pipeline, watch)
        for (level, target), text in list(self._ir.items()):
            if target == first and level.startswith(f"{name}/"):
                self._ir.setdefault((level, self._here), text)
        return replace(compiled, description=description, code=code, code_key=key)

    def build(self, module: ModuleOp, device: str, options: Options, name: str) -> tuple[ProgramDescription, bytes, str]:
        """The description and the object of an imported graph for the target of the moment."""
        return self._make(name, module, device, options, None, fitted_pipeline(module, device, options))

    def _make(
        self,
        name: str,
        module: ModuleOp,
        device: str,
        options: Options,
        debug: DebugFolder | None,
        pipeline: Pipeline,
        watch: Watch | None = None,
    ) -> tuple[ProgramDescription, bytes, str]:
        """What compile_graph.build does, with the IR of each level kept."""
        if self._keeps_ir:
            self._keep_ir(f"{name}/import", import_target(device), module)
        others = [level for level in self._levels if level is not self._level and not level.is_gpu] if device == "cpu" else []
        self._branches.append(Branches(pipeline, others, self._keeper(name)))
        return build(module, device, options, debug, pipeline, self._branches[-1])

    def _keeper(self, name: str) -> Callable[[str, ModuleOp], None] | None:
        """What keeps the IR behind a stage, where that is wanted."""
        return (lambda stage, module: self._keep_ir(f"{name}/{stage}", self._here, module)) if self._keeps_ir else None

    @property
    def _here(self) -> str:
        assert self._level is not None
        return self._level.target.name

    def _keep_ir(self, name: str, target: str, module: ModuleOp) -> None:
        text = zlib.compress(print_ir(module, debuginfo=name.endswith("/import")).encode(), 1)
        self._ir.setdefault((name, target), text)

    def add_object(self, name: str, code: bytes) -> None:
        """The image of a program's object."""
        undefined = object_symbols(code)[1]
        self._functions |= {symbol for symbol in undefined if spec_of(symbol) is not None}
        self._add(name, self._here, [code], exported([code]))

    def add_kernels(self, description: ProgramDescription) -> tuple[KernelRecord, ...]:
        """The kernels of a program for a GPU, in all variants: none is compiled later."""
        if not description.kernels:
            return ()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda kernel: kernel.variant(addresses=True, sizes=True), description.kernels))
            return tuple(pool.map(self._kernel, description.kernels))

    def _kernel(self, kernel: GpuKernel) -> KernelRecord:
        binaries = [kernel.variant(addresses=v != Variant.NOTHING, sizes=v == Variant.ALL) for v in Variant]
        first, second, third = map(self._binary, binaries)
        for variant, record in zip(Variant, (first, second, third), strict=True):
            self._keep_ptx(kernel, variant, record.section)
        described = tuple(DescriptorRecord(d.position, d.rank, d.bytes) for d in kernel.described)
        place = without_folders(kernel.place)
        return KernelRecord(kernel.name, place, kernel.aligned, kernel.even, kernel.overlaps, described, (first, second, third))

    def _binary(self, binary: Binary) -> BinaryRecord:
        assert self._level is not None and self._level.gpu is not None
        name = hashlib.sha256(binary.code).hexdigest()
        self._binaries[self._level.gpu.binary, name, self._here] = binary.code
        boxes = tuple(BoxRecord(b.element, b.swizzle, b.sizes) for b in binary.boxes)
        return BinaryRecord(binary.name, name, binary.threads, binary.shared, boxes)

    def _keep_ptx(self, kernel: GpuKernel, variant: Variant, name: str) -> None:
        """Keep the PTX of a variant, unless it is for one architecture alone, or a better target has some."""
        assert self._level is not None
        capability = self._level.target.capability
        if not capability or not is_portable(capability) or any(target != self._here for _, target in self._ptx):
            return
        text = kernel.ptx(addresses=variant != Variant.NOTHING, sizes=variant == Variant.ALL)
        self._ptx[name, self._here] = zlib.compress(text.encode(), 6)

    def _share(self) -> None:
        """The image of the products and attention of a target."""
        if self._functions:
            objects = [function_object(symbol) for symbol in sorted(self._functions)]
            self._add("functions", self._here, objects, frozenset(self._functions))

    def _add(self, name: str, target: str, objects: list[bytes], exports: frozenset[str]) -> None:
        table, content = link_image(objects, exports)
        self._sections.append((Section("code-table", name, 0, 0, "", target), schema.dump(table)))
        self._sections.append((Section("code", name, 0, 0, "", target), content))

    def handle_offset(self) -> int:
        """Where this torch keeps the tensor in a Python object. PackageError where that is not known."""
        found = handle_offset()
        if found is None:
            raise PackageError("this torch keeps its tensors in an unknown place: packages cannot be made with it")
        return found

    def _add_runtime(self, baseline: str, target: str) -> None:
        """The runtime of a machine, and the program that tries native entries there."""
        wanted = cpu.target(baseline)
        runtime = compile_text(runtime_text(self.handle_offset()), wanted=wanted)
        self._add("runtime", target, [runtime], exported([runtime]))
        description, code = compile_selftest(wanted)
        self._add("selftest", target, [code], exported([code]))
        record: Any = record_of(description, (), (), ())
        self._sections.append((Section("program", "selftest", 0, 0, "", target), schema.dump(record)))

    def finish(self) -> list[tuple[Section, bytes]]:
        """All sections, with the runtime and the program that tries native entries."""
        for machine in sorted(self._machines, reverse=True):
            self._add_runtime(*BASELINES[machine])
        for kind, api in (("cubin", ""), ("hsaco", HIP)):
            if any(one == kind for one, _, _ in self._binaries):
                gpu = compile_text(gpu_runtime_text(hip=api == HIP), wanted=cpu.target(BASELINES["x86_64"][0]))
                self._add("gpu-runtime", api, [gpu], exported([gpu]))
        texts = {("ptx", *key): text for key, text in self._ptx.items()}
        for found in (self._binaries, texts):
            self._sections += [(Section(kind, name, 0, 0, "", target), found[kind, name, target]) for kind, name, target in sorted(found)]
        return [*self._sections, *((Section("ir", name, 0, 0, "", target), text) for (name, target), text in self._ir.items())]


def without_folders(place: str) -> str:
    """Where a kernel comes from, in any folder: `kernel @k0 (model.py:12)` for `kernel @k0 (/home/me/model.py:12)`."""
    return re.sub(r"\([^()]*[/\\]", "(", place)


def import_target(device: str) -> str:
    """What the section of an imported graph has as target: "" for the CPU, "cuda"."""
    return "" if device == "cpu" else device.partition(":")[0]


def read_ir(file: PackageFile, section: Section) -> str:
    """The text of a section of IR. PackageError where it is damaged."""
    file.check(section)
    try:
        return zlib.decompress(file.bytes_of(section)).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise file.error(f"section {section.label} cannot be read: {error}") from None
