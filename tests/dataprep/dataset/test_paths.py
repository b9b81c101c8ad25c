"""Names below a dataset's root: which of them are hidden."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.paths import is_hidden_name, is_readable_image, named, path_of, readable
from dataprep.sources.keys import key_of, name_parts
from tests.support.samples import examples

parts = st.sampled_from(["a", ".a", "a.b", "__MACOSX", "__MACOSX.d", "x__MACOSX", "_", "..", "é"])


@examples
@given(st.lists(parts, min_size=1, max_size=5))
def test_a_path_is_hidden_if_one_of_its_components_is(path):
    assert is_hidden_name("/".join(path)) == any(part.startswith(".") or part == "__MACOSX" for part in path)


@pytest.mark.parametrize("name", ["a/b.jpg", "Kätzchen 1.jpg", "a=b.png", "__a/__b.jpg", "raw\udcff.jpg"])
def test_key_says_the_path_that_it_was_made_of(name):
    assert path_of(key_of(name_parts(name))) == name.rpartition(".")[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cats/süß 1.jpg", "cats/s=C3=BC=C3=9F=201 = 'cats/süß 1'"),
        ("raw\udcff.jpg", r"raw=FF = 'raw\xff'"),
        ("red\x1b[31m.jpg", r"red=1B=5B31m = 'red\x1b[31m'"),
        ("cats/1.jpg", "cats/1"),
    ],
)
def test_errors_name_the_key_and_its_path_where_they_differ(name, text):
    assert named(key_of(name_parts(name))) == text


def test_long_keys_are_shortened_in_errors():
    key = key_of(name_parts(f"{'猫' * 500}.jpg"))
    assert named(key).startswith(key[:190]) and len(named(key)) < 300
    assert named("k" * 5000) == f"{'k' * 197}..."


@pytest.mark.parametrize("key", ["a.b=20c", "Kätzchen=20", "half=2", "end=", "a b\n=41"])
def test_keys_that_other_tools_wrote_are_shown_as_they_are(key):
    assert path_of(key) == key


def test_names_for_people_hold_no_character_that_moves_a_cursor_or_no_file_can_have():
    assert readable("red=1B=5B31m") == "red\ufffd[31m"
    readable("raw=FF").encode()
    assert readable(f"{key_of(['猫' * 500])}").startswith("猫猫")


def test_readable_images_are_known_by_their_suffix():
    names = ("a.JPG", "b/c.png", "d.tiff", "jpg", "e.jpg.txt")
    assert [name for name in names if is_readable_image(name)] == ["a.JPG", "b/c.png", "jpg"]
