"""Names below a dataset's root: which of them are hidden."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dataprep.dataset.paths import is_hidden_name
from tests.support.samples import examples

parts = st.sampled_from(["a", ".a", "a.b", "__MACOSX", "__MACOSX.d", "x__MACOSX", "_", "..", "é"])


@examples
@given(st.lists(parts, min_size=1, max_size=5))
def test_a_path_is_hidden_if_one_of_its_components_is(path):
    assert is_hidden_name("/".join(path)) == any(part.startswith(".") or part == "__MACOSX" for part in path)
