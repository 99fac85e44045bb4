"""Objects linked to an image and mapped: relocations, imports, what is refused."""

import ctypes

import pytest
from arm_packages import driver, image_words
from arm_processors import PROCESSORS, needs_arm, on

from stepwell.targets.cpu import features
from stepwell.targets.cpu.jit import compile_text
from stepwell.targets.package.errors import PackageError
from stepwell.targets.package.image import PAGE_BYTES, FileRange, ImageTable, map_image
from stepwell.targets.package.process import process_address
from stepwell.tools.package.elf_image import exported, link_image

WANTED = features.target("generic-sse")

COUNTER = """
@count = internal global i64 40
@table = constant [2 x ptr] [ptr @twice, ptr @labs]
@zeros = global [1000 x i64] zeroinitializer
@pointer = global ptr getelementptr ([1000 x i64], ptr @zeros, i64 0, i64 7)
declare i64 @labs(i64)
declare i64 @other(i64)
define i64 @twice(i64 %x) {
  %y = mul i64 %x, 2
  ret i64 %y
}
define i64 @next() {
  %n = load i64, ptr @count
  %m = add i64 %n, 1
  store i64 %m, ptr @count
  ret i64 %m
}
define i64 @through(i64 %which, i64 %x) {
  %slot = getelementptr [2 x ptr], ptr @table, i64 0, i64 %which
  %f = load ptr, ptr %slot
  %y = call i64 %f(i64 %x)
  %z = call i64 @labs(i64 %y)
  %w = call i64 @other(i64 %z)
  ret i64 %w
}
define i64 @mark() {
  %p = load ptr, ptr @pointer
  store i64 5, ptr %p
  %q = getelementptr [1000 x i64], ptr @zeros, i64 0, i64 7
  %v = load i64, ptr %q
  ret i64 %v
}
"""
OTHER = "define i64 @other(i64 %x) {\n  %y = add i64 %x, 1000\n  ret i64 %y\n}\n"


def mapped(*texts, exports=None, resolve=process_address):
    objects = [compile_text(text, wanted=WANTED) for text in texts]
    table, content = link_image(objects, exported(objects) if exports is None else exports)
    table.check("test", len(content))
    return map_image("test", table, FileRange(-1, 0, memoryview(content)), resolve)


def call(image, name, *arguments):
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))(image.address(name))(*arguments)


def test_data_tables_calls_between_objects_and_calls_outside():
    image = mapped(COUNTER, OTHER)
    assert [call(image, "next") for _ in range(2)] == [41, 42]
    assert call(image, "through", 0, -21) == 1042
    assert call(image, "through", 1, -21) == 1021
    assert call(image, "mark") == 5


def test_two_mappings_have_data_of_their_own():
    first, second = mapped(COUNTER, OTHER), mapped(COUNTER, OTHER)
    assert call(first, "next") == 41 and call(second, "next") == 41


def test_an_image_is_the_same_each_time_and_its_parts_are_whole_pages():
    objects = [compile_text(text, wanted=WANTED) for text in (COUNTER, OTHER)]
    table, content = link_image(objects, exported(objects))
    assert link_image(objects, exported(objects)) == (table, content)
    assert all(part % PAGE_BYTES == 0 for part in (table.code, table.constants, table.data)) and table.zeros == 8000
    assert set(table.imports) == {"labs"}


def test_a_symbol_that_is_nowhere_is_named():
    with pytest.raises(PackageError, match="symbols that this process lacks: other"):
        mapped(COUNTER)


def test_a_file_is_mapped_not_copied(tmp_path):
    objects = [compile_text(text, wanted=WANTED) for text in (COUNTER, OTHER)]
    table, content = link_image(objects, exported(objects))
    path = tmp_path / "image"
    path.write_bytes(bytes(PAGE_BYTES) + content)
    with open(path, "rb") as file:
        image = map_image("test", table, FileRange(file.fileno(), PAGE_BYTES, memoryview(content)), process_address)
    assert call(image, "through", 0, -21) == 1042 and call(image, "next") == 41
    with open("/proc/self/maps") as maps:
        assert str(path) in maps.read()
    assert path.read_bytes()[PAGE_BYTES:] == content


def test_objects_of_two_machines_make_no_image():
    objects = [compile_text(OTHER, wanted=features.target(name)) for name in ("neon", "generic-sse")]
    with pytest.raises(PackageError, match="objects for one machine"):
        link_image(objects, exported(objects))


@needs_arm
def test_an_image_of_arm(tmp_path):
    objects = [compile_text(text, wanted=features.target("neon")) for text in (COUNTER, OTHER)]
    table, content = link_image(objects, exported(objects))
    table.check("test", len(content))
    (tmp_path / "image").write_bytes(bytes(PAGE_BYTES) + content)
    calls = ["next 0", "next 0", "through 2 0 -21", "through 2 1 -21", "mark 0"]
    (tmp_path / "script").write_text("\n".join([*image_words(table, PAGE_BYTES), *(f"call {one}" for one in calls)]))
    (tmp_path / "memory").write_bytes(b"")
    words = (str(tmp_path / name) for name in ("image", "script", "memory"))
    done = on(PROCESSORS["cpu-armv8"])(driver(tmp_path), *words)
    assert done.stdout.split() == ["41", "42", "1042", "1021", "5"], done.stdout + done.stderr


def test_thread_local_data_and_objects_of_other_machines_are_refused():
    with pytest.raises(PackageError, match="code images have no"):
        mapped("@x = thread_local global i64 3\ndefine ptr @f() {\n  ret ptr @x\n}\n")
    foreign = bytearray(compile_text(OTHER, wanted=WANTED))
    foreign[18] = 243  # RISC-V
    with pytest.raises(PackageError, match="64-bit x86 or 64-bit Arm on Linux; this one is for another machine"):
        link_image([bytes(foreign)], {"other"})


@pytest.mark.parametrize(
    "table",
    [
        ImageTable(PAGE_BYTES, 0, PAGE_BYTES, 0, rebases=(2 * PAGE_BYTES - 7,)),
        ImageTable(PAGE_BYTES, 0, PAGE_BYTES, 0, rebases=(8,)),
        ImageTable(PAGE_BYTES, 0, PAGE_BYTES, 0, imports={"labs": (-8,)}),
        ImageTable(PAGE_BYTES, 0, PAGE_BYTES, 0, exports={"f": 2 * PAGE_BYTES}),
        ImageTable(PAGE_BYTES, 0, PAGE_BYTES, -1),
        ImageTable(PAGE_BYTES + 1, 0, PAGE_BYTES - 1, 0),
        ImageTable(PAGE_BYTES, 0, 0, 0),
        ImageTable(PAGE_BYTES, 0, PAGE_BYTES, 1 << 40),
    ],
)
def test_a_table_that_does_not_fit_is_refused(table):
    with pytest.raises(PackageError):
        table.check("test", 2 * PAGE_BYTES)


def test_a_word_that_points_outside_is_refused():
    table = ImageTable(PAGE_BYTES, 0, PAGE_BYTES, 0, rebases=(PAGE_BYTES,))
    content = bytes(PAGE_BYTES) + (1 << 50).to_bytes(8, "little") + bytes(PAGE_BYTES - 8)
    with pytest.raises(PackageError, match="points outside"):
        map_image("test", table, FileRange(-1, 0, memoryview(content)), process_address)
