"""Names of objects: any relative path of plain parts, and nothing that leaves the root."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from dataprep.storage.base import FORBIDDEN, check_name, check_prefix
from tests.support.samples import examples

parts = st.text(st.characters(exclude_characters=f"/{FORBIDDEN}"), min_size=1).filter(
    lambda part: part not in (".", "..")
)
names = st.lists(parts, min_size=1, max_size=4).map("/".join)


@examples
@given(names)
def test_a_path_of_plain_parts_is_a_valid_name(name: str):
    assert check_name(name) == name
    assert check_prefix(f"{name}/") == check_prefix(name) == name
    assert not PurePosixPath(name).is_absolute()


@examples
@given(names, st.sampled_from(["", ".", ".."]), st.integers(0, 4))
def test_a_part_that_is_empty_or_climbs_is_refused(name: str, part: str, at: int):
    components = name.split("/")
    components.insert(at, part)
    with pytest.raises(UsageError, match='must be relative, with parts separated by "/" and none empty'):
        check_name("/".join(components))


@examples
@given(names, st.sampled_from(FORBIDDEN))
def test_forbidden_characters_are_refused(name: str, character: str):
    with pytest.raises(UsageError, match="must hold no backslash, NUL or line end"):
        check_name(f"{name}{character}x")


def test_the_empty_prefix_is_the_root():
    assert check_prefix("") == ""
    with pytest.raises(UsageError, match="must be relative"):
        check_prefix("/")
