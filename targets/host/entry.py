"""One native entry under construction: slots for what it owns, its steps, the global lock and the ways out when something fails.

What is the same in every program is a table of steps that the runtime goes through (steps.py): LLVM takes long for a line of code
(docs/lab/host.md), and next to nothing for a number. Steps wait in `Entry` until an instruction has to follow them.

An entry is a straight line: every failure leaves through one of a few blocks at the end, which drop what the slots
still hold. So a value computed once (a size, an address, an object) can be used by everything after it."""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects.expr import Expr
from ..cpu.emit.text import ModuleText
from ..cpu.symbols import ERROR_SLOT
from . import steps
from .description import ARENA, GPU_TABLE, LAUNCHERS, OBJECTS, SYMBOL, ItemTable
from .entry_code import EntryCode
from .gpu.runtime_ir import STATE_BYTES
from .steps import HostStep
from .symbols import error_text_available


class Entry(EntryCode):
    """The text of one entry. `objects` and `handles` count the slots for owned Python objects and tensor handles."""

    def __init__(self, module: ModuleText, items: ItemTable, arguments: int):
        super().__init__(module, items)
        self.objects = arguments
        self.handles = 0
        self.scratch_words = 1
        """How many words of scratch memory the largest step needs."""
        self.has_lock = True
        self.uses_arena = False
        self.arena_block = ""
        """The register of the address of the arena's memory, once it is acquired."""
        self.arena_bytes = ""
        """The register of the arena's size."""
        self.views = 0
        """How many tensors over the arena are kept between calls."""
        self.guards_grad_mode = False
        self.guards_device = False
        self.uses_gpu = False
        self.exits: set[str] = set()
        self._steps: list[int] = []
        self._step_count = 0
        self._lock_before = True
        self._places: dict[object, int] = {}

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, code: HostStep, *words: int) -> None:
        """Add a step. It happens before every instruction that is added after it."""
        if not self._steps:
            self._lock_before = self.has_lock
        self._steps += (code, *words)
        self._step_count += 1

    def let(self, expression: str) -> str:
        if self._steps:
            self._run_steps()
        return super().let(expression)

    def do(self, line: str) -> None:
        if self._steps:
            self._run_steps()
        super().do(line)

    def _run_steps(self) -> None:
        """The call that goes through the steps that wait."""
        words, self._steps = self._steps, []
        count, self._step_count = self._step_count, 0
        held = "true" if self._lock_before else "false"
        code = self.call("stepwell_steps", "%frame", self.constant_words(words), str(count), held)
        self.exits.add("steps")
        onward = self.label()
        self.do(f"br i1 {self.let(f'icmp ne i32 {code}, 0')}, label %fail.steps, label %{onward}")
        self.start(onward)

    def step_lock(self) -> None:
        """As `take_lock`, as a step."""
        if not self.has_lock:
            self.step(HostStep.LOCK)
            self.has_lock = True

    def step_unlock(self) -> None:
        """As `drop_lock`, as a step."""
        if self.has_lock:
            self.step(HostStep.UNLOCK)
            self.has_lock = False

    def step_size(self, expr: Expr) -> int:
        """The word of a size in a step."""
        if expr.is_const:
            return steps.number(int(expr))
        if expr in self._places:
            return steps.place(self._places[expr])
        waiting, self._steps = self._steps, []  # sizes depend on no step
        register = self.size(expr)
        self._steps = waiting
        return self.step_number(expr, register, "i64")

    def step_number(self, key: object, register: str, type: str) -> int:
        """The word of a computed number of type i64 or double; `key` tells numbers apart."""
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = len(self._places)
            waiting, self._steps = self._steps, []
            self.do(f"store {type} {register}, ptr {self.at('%numbers', found, 'i64')}")
            self._steps = waiting
        return steps.place(found)

    def step_layout(self, sizes: Sequence[Expr], strides: Sequence[Expr]) -> list[int]:
        """The words of a layout: the rank, the sizes, the strides."""
        self.need_scratch(2 * len(sizes))
        return [len(sizes), *map(self.step_size, sizes), *map(self.step_size, strides)]

    def need_scratch(self, words: int) -> None:
        """A step will need that many words of scratch memory."""
        self.scratch_words = max(self.scratch_words, words)

    # -- slots ---------------------------------------------------------------------------------------------------------

    def object_slot(self) -> int:
        """A new slot for an owned reference."""
        self.objects += 1
        return self.objects - 1

    def handle_slot(self) -> int:
        """A new slot for an owned tensor handle."""
        self.handles += 1
        return self.handles - 1

    def keep_object(self, value: str) -> int:
        """Put an owned reference into a new slot; gives the slot's number."""
        slot = self.object_slot()
        self.do(f"store ptr {value}, ptr {self.at('%objects', slot)}")
        return slot

    def keep_handle(self, value: str) -> int:
        """Put an owned tensor handle into a new slot; gives the slot's number."""
        slot = self.handle_slot()
        self.do(f"store ptr {value}, ptr {self.at('%handles', slot)}")
        return slot

    def forget_object(self, slot: int) -> None:
        """The reference of the slot has gone elsewhere."""
        self.do(f"store ptr null, ptr {self.at('%objects', slot)}")

    def forget_handle(self, slot: int) -> None:
        self.do(f"store ptr null, ptr {self.at('%handles', slot)}")

    # -- the global lock of Python
    # ---------------------------------------------------------------------------------------

    def take_lock(self) -> None:
        """From here on Python objects are touched."""
        if not self.has_lock:
            self.call("PyEval_RestoreThread", self.load("%thread"))
            self.has_lock = True

    def drop_lock(self) -> None:
        """Let other Python threads run until `take_lock`."""
        if self.has_lock:
            self.do(f"store ptr {self.call('PyEval_SaveThread')}, ptr %thread")
            self.has_lock = False

    # -- failure
    # ---------------------------------------------------------------------------------------------------------

    def where(self, number: int) -> None:
        """Remember what is going on, for the message of a failure."""
        self.do(f"store i64 {number}, ptr %where")

    def fail_if(self, condition: str, reason: str) -> None:
        """Leave when the i1 holds. Reasons: "python" (the exception is set), "noted" (the same, by the call that `where` says),
        "torch" (the C shim has its text), "operator" (the same, of the call that `where` says), "memory", and the callbacks
        "raise_check", "raise_assert", "raise_kernel", which get what `where` says."""
        label = reason.replace("_", ".") if self.has_lock else reason.replace("_", ".") + ".unlocked"
        self.exits.add(label)
        onward = self.label()
        self.do(f"br i1 {condition}, label %fail.{label}, label %{onward}")
        self.start(onward)

    def require_object(self, value: str) -> str:
        """Leave when a new reference is null (Python's exception is set)."""
        self.fail_if(self.let(f"icmp eq ptr {value}, null"), "python")
        return value

    def require_ok(self, code: str, reason: str = "torch") -> None:
        """Leave when a function of the C shim returned an error."""
        self.fail_if(self.let(f"icmp ne i32 {code}, 0"), reason)

    def poll(self) -> None:
        """Leave when a kernel reported an error; the slot is cleared."""
        number = self.let(f"atomicrmw xchg ptr @{ERROR_SLOT}, i32 0 monotonic")
        self.do(f"store i64 {self.let(f'zext i32 {number} to i64')}, ptr %where")
        self.fail_if(self.let(f"icmp ne i32 {number}, 0"), "raise_kernel")

    # -- the whole function
    # ------------------------------------------------------------------------------------------------

    def _drop_everything(self) -> None:
        self.call("stepwell_drop", "%objects", str(self.objects), "%handles", str(self.handles))
        if self.uses_arena:
            self.call("stepwell_arena_release", self.load(f"@{ARENA}"), self.load("%arena"))
        if self.guards_device:
            self.call("stepwell_gpu_leave", "%gpu")
        if self.guards_grad_mode:
            # the flag is 0 or 1, and off is what it is now
            self.call("aoti_torch_grad_mode_set_enabled", self.load("%grad", "i8"))

    def leave(self, result: str) -> None:
        """Return `result`, a new reference."""
        self.take_lock()
        self._drop_everything()
        self.do(f"ret ptr {result}")

    def _emit_exits(self) -> None:
        for label in sorted(self.exits):
            if label.endswith(".unlocked"):
                self.start(f"fail.{label}")
                self.call("PyEval_RestoreThread", self.load("%thread"))
                plain = label.removesuffix(".unlocked")
                self.do(f"br label %fail.{plain}")
        for label in sorted({label.removesuffix(".unlocked") for label in self.exits} - {"python"}):
            self.start(f"fail.{label}")
            self._raise(label)
            self.do("br label %fail.python")
        self.start("fail.python")
        self._drop_everything()
        self.do("ret ptr null")

    def _raise(self, label: str) -> None:
        if label == "noted":
            function, frame = self.item("callback", "note_operator"), self.let("ptrtoint ptr %frame to i64")
            self.call("stepwell_note", function, self.load("%where", "i64"), frame)
            return
        if label == "memory":
            self.call("stepwell_no_memory", self.arena_bytes)
            return
        if label in ("steps", "torch", "operator"):
            # an operator that fails in a mode of Python's (AOTAutograd has one around the first call) leaves the exception itself
            error, ask = self.let(f"icmp ne ptr {self.call('PyErr_Occurred')}, null"), self.label()
            self.do(f"br i1 {error}, label %fail.python, label %{ask}")
            self.start(ask)
            label = "raise.operator" if label == "operator" else "raise.torch"
        text, frame = "0", "0"
        if label in ("raise.operator", "raise.torch") and error_text_available():
            text = self.let(f"ptrtoint ptr {self.call('torch_exception_get_what_without_backtrace')} to i64")
        if label == "raise.operator":
            frame = self.let("ptrtoint ptr %frame to i64")
        function = self.item("callback", label.replace(".", "_"))
        self.call("stepwell_call", function, "null", self.load("%where", "i64"), text, frame)

    def _frame(self) -> list[str]:
        """Instructions that fill the frame, which steps work on; the arena comes in when it is acquired."""
        lines: list[str] = []
        functions = "null"
        if self._launchers:
            functions = f"@{LAUNCHERS}"
            table = ", ".join(f"ptr @{name}" for name in self._launchers)
            self.module.globals.append(f"{functions} = global [{len(self._launchers)} x ptr] [{table}]")
        parts = ("%objects", "%handles", "%numbers", "%scratch", "%thread", "null", f"@{OBJECTS}", functions)
        for k, part in enumerate(parts):
            lines += [f"  %frame{k} = getelementptr ptr, ptr %frame, i64 {k}", f"  store ptr {part}, ptr %frame{k}"]
        return lines

    def finish_entry(self) -> None:
        """Add the function, the object table and the arena to the module."""
        self._emit_exits()
        head = [
            f"  %objects = alloca [{max(1, self.objects)} x ptr], align 8",
            f"  %handles = alloca [{max(1, self.handles)} x ptr], align 8",
            f"  %numbers = alloca [{max(1, len(self._places))} x i64], align 8",
            f"  %scratch = alloca [{self.scratch_words} x i64], align 16",
            "  %frame = alloca [8 x ptr], align 8",
            "  %thread = alloca ptr, align 8",
            "  %arena = alloca ptr, align 8",
            "  %out = alloca ptr, align 8",
            "  %where = alloca i64, align 8",
            "  %grad = alloca i8, align 1",
            *self.allocas,
            f"  call void @llvm.memset.p0.i64(ptr %objects, i8 0, i64 {8 * max(1, self.objects)}, i1 false)",
            f"  call void @llvm.memset.p0.i64(ptr %handles, i8 0, i64 {8 * max(1, self.handles)}, i1 false)",
            "  store ptr null, ptr %arena",
            "  store i8 0, ptr %grad",
            "  store i64 0, ptr %where",
            *self._frame(),
        ]
        if self.uses_gpu:
            head.insert(0, f"  %gpu = alloca [{STATE_BYTES} x i8], align 8")
            head.append(f"  call void @llvm.memset.p0.i64(ptr %gpu, i8 0, i64 {STATE_BYTES}, i1 false)")
            self.module.globals.append(f"@{GPU_TABLE} = global ptr null")
        self.module.declare("llvm.memset.p0.i64", "void", "ptr, i8, i64, i1")
        self.module.defined.add(SYMBOL)
        # a straight line of calls gains nothing from optimisation, which takes 2.5 times as long
        signature = f"define ptr @{SYMBOL}(ptr %self, ptr %args, i64 %given) noinline optnone #0 {{"
        self.module.functions.append("\n".join([signature, "entry:", *head, *self.lines, "}", ""]))
        self.module.globals.append(f"@{OBJECTS} = global [{max(1, len(self.items.items))} x ptr] zeroinitializer")
        self.module.globals.append(f"@{ARENA} = global ptr null")
