"""LLVM IR text to machine code in this process: compile, link, look up, call.

    lib = load_object(compile_text(text))
    lib.call("k0", x, y, 1024)

No optimiser runs: the text has explicit vectors and no redundancy, so instruction selection is all that LLVM is asked
for (with its passes, code came out slower and three times later).

Outside symbols are those of the process: libm, and what torch brings (Sleef in libtorch_cpu, libgomp). They are
looked for beside an installed torch without importing it, and only when an object needs them."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from llvmlite import binding

from ...errors import CompileError
from ..llvm_text import llvm_text
from .features import Target, target
from .library import library_symbols
from .symbols import ERROR_SLOT, ERROR_VALUES, MESSAGE_COUNT, MESSAGE_TABLE

_lock = threading.RLock()
_initialised: set[str] = set()


class LlvmError(CompileError):
    """LLVM refused the text, or a symbol that an object needs is nowhere."""


def _initialise(native: bool) -> None:
    kind = "native" if native else "all"
    if kind in _initialised:
        return
    if native:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
    else:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
    _initialised.add(kind)


@cache
def machine_for(wanted: Target, opt: int) -> Any:
    """One target machine for each instruction set and level; making one costs 0.2 ms."""
    _initialise(wanted.triple == binding.get_process_triple())
    found = binding.Target.from_triple(wanted.triple)
    return found.create_target_machine(
        cpu=wanted.cpu, features=wanted.features, opt=opt, reloc="pic", codemodel="default", jit=False
    )


def _parse(text: str) -> Any:
    try:
        return binding.parse_assembly(text, context=binding.create_context())
    except RuntimeError as error:
        raise LlvmError(f"LLVM cannot read the generated text: {error}{_excerpt(text, str(error))}") from error


def _excerpt(text: str, message: str) -> str:
    """The line that LLVM's message points to."""
    place = re.search(r":(\d+):\d+: error", message)
    if place is None:
        return ""
    lines = text.splitlines()
    number = int(place.group(1))
    return f"\nin line {number}: {lines[number - 1]}" if 0 < number <= len(lines) else ""


def compile_text(text: str, opt: int = 2, wanted: Target | None = None) -> bytes:
    """The relocatable object for one LLVM module; `opt` is the level of the code generator (0 to 3).

    LlvmError shows the line that LLVM does not like.
    """
    wanted = wanted or target()
    with _lock:
        machine = machine_for(wanted, opt)
        return machine.emit_object(_parse(text))


def assembly(text: str, wanted: Target | None = None, opt: int = 2) -> str:
    """The assembly text for one LLVM module."""
    wanted = wanted or target()
    with _lock:
        return machine_for(wanted, opt).emit_assembly(_parse(text))


_SERIAL_OPENMP = Path(__file__).with_name("serial_openmp.ll")
_OPENMP = frozenset(("GOMP_parallel", "omp_get_max_threads", "omp_get_num_threads", "omp_get_thread_num"))


def _torch_library_folder() -> Path | None:
    if "torch" in sys.modules:
        file = getattr(sys.modules["torch"], "__file__", None)
    else:
        try:
            spec = importlib.util.find_spec("torch")
        except (ImportError, ValueError):
            return None
        file = spec.origin if spec is not None else None
    folder = Path(file).parent / "lib" if file else None
    return folder if folder is not None and folder.is_dir() else None


@cache
def load_process_libraries() -> tuple[str, ...]:
    """Make torch's libgomp, libtorch_cpu and libtorch_cuda visible to the linker, for good; gives the files that were found (none
    without torch)."""
    folder = _torch_library_folder()
    if folder is None:
        return ()
    found: list[str] = []
    for pattern in ("libgomp*.so*", "libomp*.dylib", "libiomp5*", "libtorch_cpu.*", "libtorch_cuda.so"):
        for path in sorted((*folder.glob(pattern), *(folder.parent.parent / "torch.libs").glob(pattern))):
            if path.suffix in (".dll", ".lib", ".a"):
                continue
            try:
                binding.load_library_permanently(str(path))
            except RuntimeError:
                continue
            found.append(str(path))
            break
    return tuple(found)


@cache
def _session() -> Any:
    _initialise(True)
    return binding.create_lljit_compiler(use_jit_link=True)


_counter = 0


class Library:
    """A linked object. Its code and data live as long as this does; whoever keeps an address of it keeps the
    library."""

    def __init__(self, tracker: Any, names: list[str]):
        self._tracker = tracker
        self._names = names

    def address(self, name: str) -> int:
        """The address of an exported symbol that was asked for. KeyError if there is none."""
        if name not in self._names:
            raise KeyError(f"the library has no symbol {name!r}; it has {', '.join(self._names)}")
        return self._tracker[name]

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @property
    def symbols(self) -> tuple[str, ...]:
        """The exported symbols that have addresses here."""
        return tuple(self._names)

    def function(self, name: str, *argument_types: Any) -> Any:
        """A ctypes function without result."""
        return ctypes.CFUNCTYPE(None, *argument_types)(self.address(name))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a kernel: arrays (of NumPy or torch) and None as pointers, ints as i64, floats as f32, bools as i1;
        other scalars as ctypes values. RuntimeError with the message of a failed check."""
        types: list[Any] = []
        values: list[Any] = []
        for argument in arguments:
            kind, value = _argument(argument)
            types.append(kind)
            values.append(value)
        self.function(name, *types)(*values)
        message = self.take_error()
        if message is not None:
            raise RuntimeError(message)

    def take_error(self) -> str | None:
        """The message of the first failed check since the last time, and clear it."""
        if ERROR_SLOT not in self._names:
            return None
        slot = ctypes.c_int32.from_address(self.address(ERROR_SLOT))
        number, slot.value = slot.value, 0
        if number == 0:
            return None
        messages = self.messages()
        return messages[number - 1].format(*self.error_values()) if number <= len(messages) else f"check {number} failed"

    def error_values(self) -> tuple[int, ...]:
        """The values that the message of the first failed check shows, where it shows any."""
        return tuple((ctypes.c_int64 * 2).from_address(self.address(ERROR_VALUES)))

    def messages(self) -> list[str]:
        """The messages of the checks of this library; number n of the error slot is item n - 1, a
        format string of `error_values`."""
        count = ctypes.c_int32.from_address(self.address(MESSAGE_COUNT)).value
        table = (ctypes.c_char_p * count).from_address(self.address(MESSAGE_TABLE))
        return [(text or b"").decode() for text in table]


def _argument(value: Any) -> tuple[Any, Any]:
    if value is None:
        return ctypes.c_void_p, None
    if isinstance(value, bool):
        return ctypes.c_bool, value
    if isinstance(value, int):
        return ctypes.c_int64, value
    if isinstance(value, float):
        return ctypes.c_float, value
    if hasattr(value, "data_ptr"):
        return ctypes.c_void_p, value.data_ptr()
    if hasattr(value, "ctypes"):
        return ctypes.c_void_p, value.ctypes.data
    return type(value), value


def load_object(data: bytes, symbols: dict[str, int] | None = None, exports: list[str] | None = None) -> Library:
    """Link an object into the process.

    `symbols` are absolute addresses that it may refer to beside those of the process; `exports` the symbols to be
    looked up (by default every defined one). LlvmError names symbols that are nowhere."""
    defined, undefined = object_symbols(data)
    symbols = {**(symbols or {}), **library_symbols(undefined)}  # may wait for a thread that needs the lock
    with _lock:
        missing = [name for name in undefined if name not in symbols and not _in_process(name)]
        if missing:
            load_process_libraries()
            missing = sorted(name for name in missing if not _in_process(name))
        names = [name for name in exports if name in defined] if exports is not None else sorted(defined)
        builder = binding.JITLibraryBuilder().add_object_img(data)
        if any(name in _OPENMP for name in missing):
            builder.add_ir(llvm_text([_SERIAL_OPENMP]))
            missing = [name for name in missing if name not in _OPENMP]
        if missing:  # asked before the link, because LLVM would write to stderr about it
            raise LlvmError(f"cannot link the generated object: these symbols are nowhere: {', '.join(missing)}")
        builder.add_current_process()
        for name, address in symbols.items():
            builder.import_symbol(name, address)
        for name in names:
            builder.export_symbol(name)
        global _counter
        _counter += 1
        try:
            tracker = builder.link(_session(), f"stepwell.{_counter}")
        except RuntimeError as error:
            raise LlvmError(f"cannot link the generated object: {error}") from error
        return Library(tracker, names)


def load_text(text: str, symbols: dict[str, int] | None = None, opt: int = 2, wanted: Target | None = None) -> Library:
    """Compile and link in one step, without the cache."""
    return load_object(compile_text(text, opt, wanted), symbols)


def _in_process(name: str) -> bool:
    return binding.address_of_symbol(name) is not None


def object_symbols(data: bytes) -> tuple[set[str], set[str]]:
    """(defined global, undefined) symbols of an object, read from its ELF symbol table; two empty sets for another
    format."""
    if data[:4] != b"\x7fELF" or data[4] != 2:
        return set(), set()
    import struct

    section_offset = struct.unpack_from("<Q", data, 40)[0]
    entry_size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, section_offset + i * entry_size) for i in range(count)]
    defined: set[str] = set()
    undefined: set[str] = set()
    for _, kind, _, _, offset, size, link, _, _, entry in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        names = sections[link][4]
        for at in range(offset, offset + size, entry):
            name, info, _, section = struct.unpack_from("<IBBH", data, at)
            if info >> 4 == 0:  # local
                continue
            start = names + name
            text = data[start : data.index(b"\0", start)].decode()
            if text and text != "_GLOBAL_OFFSET_TABLE_":
                (defined if section else undefined).add(text)
    return defined, undefined
