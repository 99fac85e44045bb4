"""The file: what is written is read, and what is damaged, cut or foreign is refused with its name."""

import random
import struct
from dataclasses import dataclass, field

import pytest

from stepwell.dialects.support.record import Record, changed
from stepwell.targets.package import schema
from stepwell.targets.package.errors import PackageError
from stepwell.targets.package.format import Section, open_package, packed, read_package, write_package
from stepwell.targets.package.layout import HEADER, FileLayout

CONTENTS = [
    (Section("signature", "", 0, 0, ""), b'{"a":1}'),
    (Section("code", "forward", 0, 0, "", "cpu-v3"), bytes(range(256)) * 40),
    (Section("weights", "", 0, 0, ""), b"weights" * 1000),
]


def whole():
    return b"".join(packed(CONTENTS, {"stepwell": "0"}, "0.1.0"))


def test_sections_are_found_by_kind_name_and_target(tmp_path):
    path = tmp_path / "a.stepwell"
    size = write_package(path, CONTENTS, {"stepwell": "0"}, "0.1.0")
    assert path.stat().st_size == size and path.read_bytes() == whole()
    with open_package(path) as file:
        for section, content in CONTENTS:
            assert bytes(file.content(section.kind, section.name, section.target)) == content
        code = file.section("code", "forward", "cpu-v3")
        assert code.offset % FileLayout.PAGE_BYTES == 0 and file.writer == "0.1.0"
        with pytest.raises(PackageError, match="no section code 'backward' for cpu-v3"):
            file.section("code", "backward", "cpu-v3")


def test_equal_sections_lie_in_the_file_once():
    content = random.Random(0).randbytes(3000)
    twice = [(Section("ir", "nd", 0, 0, "", target), content) for target in ("cpu-v3", "cpu-v4")]
    file = read_package(b"".join(packed([*twice, (Section("code", "f", 0, 0, ""), content)], {}, "0")))
    first, second, code = file.index.sections
    assert first.offset == second.offset != code.offset and code.offset % FileLayout.PAGE_BYTES == 0
    assert bytes(file.content("ir", "nd", "cpu-v4")) == bytes(file.content("code", "f")) == content


def test_a_foreign_file_a_missing_one_and_a_short_one_are_named(tmp_path):
    path = tmp_path / "a.stepwell"
    for content, message in [
        (b"PK\x03\x04" + bytes(500), "no package of stepwell"),
        (b"", "it has 0 bytes"),
        (whole()[:-1], "get the file again"),
        (whole()[:200], "get the file again"),
        (whole() + b"x", "get the file again"),
    ]:
        path.write_bytes(content)
        with pytest.raises(PackageError, match=message) as caught:
            open_package(path)
        assert str(path) in str(caught.value)
    with pytest.raises(PackageError, match="cannot be opened"):
        open_package(tmp_path / "none")
    with pytest.raises(PackageError, match="cannot be"):
        open_package(tmp_path)


def changed_header(place, value, form="<I"):
    import zlib

    data = bytearray(whole())
    struct.pack_into(form, data, place, value)
    data[HEADER.size : HEADER.size + 4] = zlib.crc32(data[: HEADER.size]).to_bytes(4, "little")
    return bytes(data)


def test_later_versions_and_unknown_features_are_refused_with_the_writer():
    with pytest.raises(PackageError, match=r"version 7.0 of the format, written by stepwell 0.1.0; this stepwell reads versions up to 1"):
        read_package(changed_header(16, 7))
    with pytest.raises(PackageError, match=r"features 0x8000000000000000 that this stepwell lacks; stepwell 0.1.0 wrote it"):
        read_package(changed_header(24, 1 << 63, "<Q"))


def test_no_damaged_byte_of_header_index_or_section_goes_unseen():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    data = whole()
    sections = read_package(data).index.sections
    used = [(0, HEADER.size + 4), *((s.offset, s.offset + s.size) for s in sections), (max(s.offset + s.size for s in sections), len(data))]
    for _ in range(300):
        damaged = bytearray(data)
        at = chance.randrange(*chance.choice(used))
        damaged[at] ^= 1 << chance.randrange(8)
        with pytest.raises(PackageError):
            file = read_package(bytes(damaged))
            for section, _ in CONTENTS:
                file.content(section.kind, section.name, section.target)


@dataclass(frozen=True)
class Inner:
    number: int
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    """A record with every kind of field."""

    name: str
    inner: Inner
    maybe: Inner | None = None
    either: int | str = 0
    pairs: tuple[tuple[str, int | None], ...] = ()
    table: dict[str, tuple[int, ...]] = field(default_factory=dict)
    flag: bool = False


def test_dataclasses_go_through_json():
    value = Outer("ü", Inner(3, ("a", "b")), Inner(4), "s0", (("x", None), ("y", 1)), {"k": (1, 2)}, True)
    assert schema.load(Outer, schema.dump(value), "test") == value
    assert schema.dump(Outer("n", Inner(1))) == b'{"inner":{"number":1},"name":"n"}'


class Quick(Record):
    """A record that is no dataclass."""

    name: str
    inner: Inner | None = None
    numbers: tuple[int, ...] = ()


def test_records_are_like_dataclasses():
    value = Quick("a", Inner(2), numbers=(1, 2))
    assert schema.load(Quick, schema.dump(value), "test") == value and hash(value) == hash(Quick("a", Inner(2), (1, 2)))
    assert schema.dump(Quick("a")) == b'{"name":"a"}' and Quick("a") != Quick("b")
    assert changed(value, name="b") == Quick("b", Inner(2), (1, 2))
    assert repr(Quick("a")) == "Quick(name='a', inner=None, numbers=())"
    for wrong in (lambda: Quick(), lambda: Quick("a", other=1), lambda: Quick("a", name="b"), lambda: Quick("a", None, (), 3)):  # pyright: ignore
        with pytest.raises(TypeError, match="Quick"):
            wrong()
    with pytest.raises(PackageError, match="test lacks name"):
        schema.load(Quick, b"{}", "test")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "test is no JSON"),
        ("[1]", "test should be an object, and is"),
        ('{"inner":{"number":1}}', "test lacks name"),
        ('{"name":"n","inner":{"number":true}}', "test.inner.number should be int, and is True"),
        ('{"name":"n","inner":{"number":1.5}}', "test.inner.number should be int"),
        ('{"name":"n","inner":{"number":1,"words":["a",2]}}', r"test.inner.words\[1\] should be str, and is 2"),
        ('{"name":"n","inner":{"number":1},"pairs":[["x"]]}', r"test.pairs\[0\] should be a list of 2"),
        ('{"name":"n","inner":{"number":1},"table":{"k":"v"}}', "test.table.k should be a list"),
        ('{"name":"n","inner":{"number":1},"either":[]}', "test.either should be int or str"),
        ('{"name":"n","inner":{"number":1},"maybe":3}', "test.maybe should be"),
        ('{"name":"n","inner":{"number":1},"other":3}', "test has unknown fields: other"),
        ('{"name":"n","inner":{"number":NaN}}', "no JSON: NaN is no number"),
        ("[" * 100000, "no JSON"),
    ],
)
def test_json_that_does_not_fit_is_refused_with_the_place(text, message):
    with pytest.raises(PackageError, match=message):
        schema.load(Outer, text.encode(), "test")
