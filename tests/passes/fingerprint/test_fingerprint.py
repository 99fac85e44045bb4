"""What code means, as one hash: what changes it, what does not, and what cannot be told."""

import functools
import importlib
import os
import subprocess
import sys
import threading
from enum import Enum

import pytest
import torch
from xdsl.dialects.builtin import f32
from xdsl.dialects.test import TestOp as OpOfATest

from stepwell.passes.fingerprint.code_modules import Uncacheable
from stepwell.passes.fingerprint.fingerprint import Fingerprint
from stepwell.tools.extensions.cache_keys import meaning

HELPER = """
import functools, enum, dataclasses, typing, collections, re, threading, logging
from xdsl.dialects.builtin import IndexType
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, traits_def
from xdsl.traits import NoTerminator
from . import other
SCALE = 2
TABLE = {"a": [1, 2], "b": (3.0, None)}
LOCK, LOG = threading.Lock(), logging.getLogger("mine")
class Kind(enum.Enum):
    ONE = 1
class Pair(typing.NamedTuple):
    left: int
    right: int = 3
Point = collections.namedtuple("Point", "x y")
@dataclasses.dataclass
class Config:
    width: int = 4
    names: list = dataclasses.field(default_factory=list)
    def doubled(self):
        return self.width * 2
class Slotted:
    __slots__ = ("value",)
    def __init__(self):
        self.value = 1
CONFIG, SLOTTED, PAIR, POINT = Config(), Slotted(), Pair(1), Point(1, 2)
@functools.cache
def cached(x):
    return x * SCALE
def scaled(x):
    return x * SCALE
def indirect(x):
    return scaled(x)
def through_module(x):
    return x * other.FACTOR
def by_import(x):
    from .other import FACTOR
    return x * FACTOR
def by_name(x):
    return getattr(other, "FAC" + "TOR") * x
def all_kinds(x):
    with LOCK:
        LOG.info("here")
    return cached(x), TABLE, CONFIG.doubled(), SLOTTED.value, PAIR.left, POINT.x, Kind.ONE, re.compile("a").match("b"), Config, [int, float]
def recursive(x):
    return mutual(x - 1)
def mutual(x):
    return recursive(x) if x else CYCLE
CYCLE = []
CYCLE.append(CYCLE)
unread = iter([1])
def made(scale, power=1):
    def inner(x, bias=power):
        return x * scale + bias
    return inner
def setting():
    global SCALE
    SCALE = 3
def reads_a_file():
    return open("x").read()
def reads_the_environment():
    import os
    return os.environ["X"]
def reads_an_object():
    return unread
@irdl_op_definition
class OwnOp(IRDLOperation):
    name = "mine.op"
    value = operand_def(IndexType())
    traits = traits_def(NoTerminator())
class Holder:
    factor = 2
    op = OwnOp
    def apply(self, x):
        return x * self.factor
    @property
    def twice(self):
        return scaled(2)
    @staticmethod
    def fixed():
        return TABLE
"""
OTHER = "FACTOR = 5\nUNRELATED = 1\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Loads a package of two modules from the texts that are given; gives the first one."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "__init__.py").write_text("")

    def load(helper=HELPER, other=OTHER):
        (folder / "helper.py").write_text(helper)
        (folder / "other.py").write_text(other)
        for name in [n for n in sys.modules if n.partition(".")[0] == "mine"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return importlib.import_module("mine.helper")

    yield load
    for name in [n for n in sys.modules if n.partition(".")[0] == "mine"]:
        del sys.modules[name]


NAMES = ("scaled", "indirect", "through_module", "by_import", "by_name", "all_kinds", "recursive", "Holder", "cached", "Config", "OwnOp")


@pytest.mark.spread
@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_code_loaded_twice_means_the_same(package, name, lasting):
    """FXC-02"""
    first = meaning(getattr(package(), name), name, lasting)
    assert meaning(getattr(package(), name), name, lasting) == first


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("scaled", lambda m: setattr(m, "SCALE", 3)),
        ("scaled", lambda m: setattr(m, "SCALE", 2.0)),
        ("indirect", lambda m: setattr(m, "SCALE", 3)),
        ("indirect", lambda m: setattr(m, "scaled", lambda x: x)),
        ("through_module", lambda m: setattr(m.other, "FACTOR", 6)),
        ("by_import", lambda m: setattr(m.other, "FACTOR", 6)),
        ("by_name", lambda m: setattr(m.other, "FACTOR", 6)),
        ("all_kinds", lambda m: m.TABLE["a"].append(3)),
        ("all_kinds", lambda m: setattr(m.CONFIG, "width", 5)),
        ("all_kinds", lambda m: setattr(m.Config, "doubled", lambda self: 1)),
        ("all_kinds", lambda m: setattr(m.SLOTTED, "value", 2)),
        ("all_kinds", lambda m: setattr(m, "PAIR", m.Pair(1, 4))),
        ("Holder", lambda m: setattr(m.Holder, "factor", 3)),
        ("Holder", lambda m: setattr(m, "SCALE", 3)),
        ("Holder", lambda m: m.TABLE.update(c=1)),
    ],
)
def test_what_is_read_counts(package, name, change):
    """FXC-02: a value that changes in the process, too."""
    module = package()
    before = [meaning(getattr(module, name), name, lasting) for lasting in (True, False)]
    change(module)
    assert meaning(getattr(module, name), name, lasting=False) != before[1]
    try:
        assert meaning(getattr(module, name), name) != before[0]
    except Uncacheable as reason:
        assert "has no file" not in str(reason) or "lambda" in str(reason)


def test_sources_of_what_is_imported_count(package):
    """FXC-02"""
    first = meaning(package().scaled, "x")
    assert meaning(package(other=OTHER + "# a remark\n").scaled, "x") != first
    assert meaning(package(HELPER + "UNUSED = 1\n").scaled, "x") != first


def test_values_that_nobody_reads_do_not_count(package):
    module = package()
    first = meaning(module.through_module, "x")
    module.other.UNRELATED, module.SCALE = 2, 7
    assert meaning(module.through_module, "x") == first
    assert meaning(module.by_name, "x") != meaning(module.through_module, "x")


def test_closures_and_defaults(package):
    make = package().made
    made = [meaning(make(*args), "x") for args in ((2,), (2,), (3,), (2, 2))]
    assert made[0] == made[1] and len(set(made)) == 3
    assert meaning(functools.partial(make(2), bias=2), "x") != meaning(functools.partial(make(2), bias=3), "x")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("setting", "'setting' sets the global 'SCALE'"),
        ("reads_a_file", "'reads_a_file' reads a file"),
        ("reads_the_environment", "the environment is read through the module 'os', which 'reads_the_environment' imports"),
        ("reads_an_object", "'unread', which 'reads_an_object' reads, is a builtins.list_iterator"),
    ],
)
def test_what_cannot_be_told(package, name, reason):
    """FXC-03, FXC-04"""
    with pytest.raises(Uncacheable, match=reason):
        meaning(getattr(package(), name), name)


HELD = (OpOfATest(), iter([1]), threading.Thread(), torch.nn.Linear(1, 1), {1: [iter([])]}, torch.ones(2).to_sparse())


@pytest.mark.parametrize("value", HELD, ids=lambda v: type(v).__name__)
def test_objects_without_a_value(value):
    with pytest.raises(Uncacheable):
        meaning(value, "the value")


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True), (0.0, -0.0), ("1", 1), ([1], (1,)), ({1, 2}, {1, 3}), ({"a": 1}, {"a": 2}), (torch.ones(2), torch.zeros(2)),
        (torch.float32, torch.float64), (torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar), (f32, "f32"), (Colour.RED, 1), (len, sum),
        (torch.relu, torch.tanh), (torch.nn.functional.gelu, torch.nn.functional.silu), (torch.nn.functional.softmax, None),
    ],
)  # fmt: skip
def test_values(one, other):
    assert meaning(one, "x") == meaning(one, "x") != meaning(other, "x")


def test_code_without_a_file():
    """FXC-03: code typed into an interpreter has no lasting text; within a process it can still be told whether it changed."""
    typed: list = []
    for k in (2, 2, 3):
        table = {"__name__": "__typed__"}
        exec(f"K = {k}\ndef f(x):\n    return x * K", table)
        typed.append(table["f"])
    with pytest.raises(Uncacheable, match="'f' has no file that holds its source"):
        meaning(typed[0], "f")
    told = [meaning(f, "f", lasting=False) for f in typed]
    assert told[0] == told[1] != told[2]


def test_other_processes_find_the_same(package, tmp_path):
    """Neither the order of sets nor addresses count."""
    package()
    program = (
        "from stepwell.passes.fingerprint.fingerprint import Fingerprint\nfrom mine import helper\ntold = Fingerprint()\n"
        f"for name in {NAMES!r}:\n    told.add(getattr(helper, name), name)\nprint(told.hexdigest())"
    )
    path = os.pathsep.join((str(tmp_path), *sys.path))
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def test_what_wraps_a_function_is_not_told_by_its_name(package):
    """The wrapper is called as what it wraps, and its module is a library's."""
    module = package()
    module.scaled = torch.no_grad()(module.scaled)
    before = meaning(module.scaled, "x", lasting=False)
    module.SCALE = 3
    assert meaning(module.scaled, "x", lasting=False) != before


def test_several_values_in_order():
    told = [Fingerprint(), Fingerprint()]
    for each, values in zip(told, ((1, 2), (2, 1)), strict=True):
        for v in values:
            each.add(v, "x")
    assert told[0].hexdigest() != told[1].hexdigest()
