"""Keys are injective, in their alphabet, and names that could do harm are refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.records import MAX_KEY_BYTES
from dataprep.errors import SourceError
from dataprep.formats.base import is_key
from dataprep.messages import shown
from dataprep.sources.keys import is_image, key_of, name_bytes, name_parts
from tests.support.samples import examples

# Any bytes that a file name can have, as Python decodes them.
names = st.binary(min_size=1, max_size=300).map(
    lambda data: re.sub(rb"[\0\\/\r\n]", b"_", data).decode("utf-8", "surrogateescape")
)
paths = st.lists(names.filter(lambda name: name not in (".", "..")), min_size=1, max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("n01440764/n01440764_10026.JPEG", "n01440764/n01440764_10026"),
        ("train2017/000000000009.jpg", "train2017/000000000009"),
        ("a.b.jpg", "a=2Eb"),
        ("a=b c.png", "a=3Db=20c"),
        ("naïve.jpg", "na=C3=AFve"),
        ("raw\udcff.jpg", "raw=FF"),
        ("no-extension", "no-extension"),
        ("__metadata/__x__.jpg", "=5F_metadata/=5F_x__"),
        ("a__b/_c.jpg", "a__b/_c"),
    ],
)
def test_a_key_is_made_of_the_path(path, key):
    assert key_of(tuple(path.split("/"))) == key


@examples
@given(paths)
def test_keys_are_in_the_alphabet_that_every_format_takes(path):
    key = key_of(path)
    assert is_key(key)
    assert len(key) <= MAX_KEY_BYTES


@examples
@given(paths)
def test_keys_that_were_not_cut_say_the_path(path):
    key = key_of(path)
    last, dot, _ = path[-1].rpartition(".")
    stem = "/".join([*path[:-1], last if dot and last else path[-1]])
    unescaped = re.sub(rb"=(..)", lambda match: bytes.fromhex(match[1].decode()), key.encode())
    if b"\0" not in unescaped:  # a cut key holds a NUL, a path never
        assert unescaped == name_bytes(stem)


@examples
@given(st.lists(st.binary(min_size=200, max_size=400), min_size=2, max_size=6, unique=True))
def test_long_names_keep_different_keys(contents):
    keys = {key_of((data.hex(),)) for data in contents}
    assert len(keys) == len(contents)
    assert all(len(key) <= MAX_KEY_BYTES for key in keys)


def test_a_cut_key_is_that_of_no_other_path():
    cut = key_of(("x" * 300,))
    assert len(cut) == MAX_KEY_BYTES
    pretender = cut.replace("=00", "\0")
    assert key_of((pretender,)) == cut
    with pytest.raises(SourceError, match="NUL"):
        name_parts(pretender)


@pytest.mark.parametrize("length", range(195, 206))
def test_no_escape_is_cut_in_two(length):
    key = key_of(("x" * (length % 3) + "é" * length,))
    assert is_key(key), key


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a/b.jpg", ("a", "b.jpg")),
        ("./a//b/./c.jpg", ("a", "b", "c.jpg")),
        ("a/", ("a",)),
        ("./", ()),
        ("...jpg", ("...jpg",)),
        ("a..b/c", ("a..b", "c")),
    ],
)
def test_a_name_is_split_into_its_parts(name, parts):
    assert name_parts(name) == parts


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../x", r"climbs out of the archive \('..'\)"),
        ("a/../b", "climbs out"),
        ("/etc/passwd", "absolute"),
        ("C:/x", "absolute"),
        ("a\\b", "backslash"),
        ("a\0b", "NUL"),
        ("a\nb", "line end"),
        ("\ud800", "not text"),
        ("y" * 100_000, "its name has 100,000 bytes, expected at most 4,096"),
    ],
)
def test_harmful_names_are_refused(name, words):
    with pytest.raises(SourceError, match=words):
        name_parts(name)


@examples
@given(st.text(max_size=60))
def test_parts_of_a_name_never_leave_the_folder(name):
    try:
        parts = name_parts(name)
    except SourceError:
        return
    assert not {"..", ".", ""} & set(parts)
    assert not any("/" in part or "\\" in part for part in parts)


@pytest.mark.parametrize("name", ["a.jpg", "a.JPEG", "b/c.png", "x.y.webp", "a.TIFF", "a.gif", "a.bmp"])
def test_images_are_recognised_by_their_names(name):
    assert is_image(name_parts(name))


@pytest.mark.parametrize(
    "name",
    ["__MACOSX/a.jpg", "._a.jpg", "a/.DS_Store", "Thumbs.db", "desktop.ini", "README", "readme.TXT", "LICENSE.md"],
)
def test_other_files_are_skipped_by_their_names(name):
    assert not is_image(name_parts(name))


@pytest.mark.parametrize("name", ["a.sh", "a", "a.jpg.part", "labels.txt", "x.tar", "README.exe"])
def test_unknown_names_are_refused(name):
    with pytest.raises(SourceError, match="by its name it is neither an image"):
        is_image(name_parts(name))


def test_names_in_messages_are_one_short_line_with_control_characters_and_odd_bytes_escaped():
    assert shown("a\nb\x1b[0m\u202e") == r"'a\nb\x1b[0m\u202e'"
    assert shown("Kätzchen 猫.jpg") == "'Kätzchen 猫.jpg'"
    assert shown("\udcff\udcfe.jpg") == r"'\xff\xfe.jpg'"
    assert shown("a\\udcff") == r"'a\\udcff'"
    assert len(shown("é" * 100_000)) < 300
