"""Damaged packages: each is refused with a PackageError, or gives the bits of the whole one (padding is nobody's)."""

import json
import random

import pytest
import torch
from torch import nn

import stepwell
from stepwell.targets.package.errors import PackageError
from stepwell.targets.package.format import packed, read_package
from stepwell.targets.package.load import load_file


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a package, an argument and the result."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("package") / "a.stepwell"
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval(), torch.randn(3, 8)
    stepwell.export(model, (x,), to=path, targets=["cpu-v3"], ir=False, samples=False)
    return path.read_bytes(), x, stepwell.load(path)(x)


def damaged(data, chance):
    """The bytes after one to three of the things that happen to files."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at, length = chance.randrange(len(made)), chance.choice((1, 1, 4, 64, 4096))
        kind = chance.randrange(6)
        if kind < 2:
            made[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            made[at : at + length] = bytes(min(length, len(made) - at))
        elif kind == 3:
            made[at : at + length] = chance.randbytes(min(length, len(made) - at))
        elif kind == 4:
            del made[at : at + length]
        else:
            other = chance.randrange(len(made))
            made[at : at + length] = made[other : other + min(length, len(made) - at)]
        if not made:
            return b""
    return bytes(made)


def check(data, x, want):
    """How a file is taken: refused or right."""
    try:
        got = load_file(read_package(data))(x)
    except PackageError:
        return "refused"
    assert torch.equal(got, want)
    return "right"


def run(whole, count):
    data, x, want = whole
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    found = [check(damaged(data, chance), x, want) for _ in range(count)]
    assert found.count("refused") > count // 4


def test_damaged_files_run_nothing(whole):
    run(whole, 400)


@pytest.mark.long
def test_many_damaged_files_run_nothing(whole):
    run(whole, 100_000)


def changed(value, chance):
    """JSON with one value that is another one."""
    places = []

    def walk(item):
        for key, part in item.items() if isinstance(item, dict) else enumerate(item):
            places.append((item, key))
            if isinstance(part, (dict, list)):
                walk(part)

    walk(value)
    holder, key = chance.choice(places)
    old = holder[key]
    values = [None, True, -1, 0, 1 << 40, 1 << 70, "", "x", [], {}, 1.5, [old], {"k": old}]
    values += [old + 1, old - 1, old * 4096] if type(old) is int else []
    kind = chance.randrange(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(old)
    else:
        holder[key] = chance.choice(values)


@pytest.mark.parametrize("kind", ["signature", "weights-table", "program", "code-table"])
def test_tables_that_do_not_fit_are_refused_though_their_checksums_are_right(whole, kind):
    data, _, _ = whole
    file = read_package(data)
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    refused = 0
    for _ in range(60):
        sections = []
        for section in file.index.sections:
            content = bytes(file.bytes_of(section))
            if section.kind == kind and section.name in ("", "forward"):
                value = json.loads(content)
                changed(value, chance)
                content = json.dumps(value).encode()
            sections.append((section, content))
        try:
            load_file(read_package(b"".join(packed(sections, {}, "0"))))
        except PackageError:
            refused += 1
    assert refused


def edited(data, kind, edit):
    """A package in which `edit` has changed the tables of a kind."""
    file, sections = read_package(data), []
    for section in file.index.sections:
        content = bytes(file.bytes_of(section))
        if section.kind == kind and section.name == "forward":
            value = json.loads(content)
            edit(value)
            content = json.dumps(value).encode()
        sections.append((section, content))
    return b"".join(packed(sections, {}, "0"))


@pytest.mark.parametrize("symbol", ["stepwell_arena", "stepwell_objects"])
def test_what_is_written_lies_in_the_data(whole, symbol):
    """Where a table says that it is code, writing there would end the process."""

    def edit(table):
        table["exports"][symbol] = 0

    with pytest.raises(PackageError, match=f"has '{symbol}' outside of its data"):
        load_file(read_package(edited(whole[0], "code-table", edit)))


def test_objects_have_places_in_the_code(whole, caplog):
    """With more of them the program runs through Python."""

    def edit(record):
        record["items"] = record["items"] * 1000

    data, x, want = whole
    assert torch.equal(load_file(read_package(edited(data, "program", edit)))(x), want)
    assert "objects, more than its code has places for" in caplog.text
