"""Comparison of two JSON documents."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dataset.differences import MAX_CHARACTERS, differences

PLAN = {"options": {"seed": 1}, "splits": [{"name": "train", "source_bytes": 8}], "plan_hash": "x"}


def test_differences_are_named_by_their_path():
    theirs = {"options": {"seed": 0}, "splits": [{"name": "train", "source_bytes": 9}], "plan_hash": "y"}
    assert differences(PLAN, theirs) == [
        "options.seed is 0 there, 1 here",
        "splits.train.source_bytes is 9 there, 8 here",
    ]


def test_the_place_of_the_other_document_is_named_and_values_are_unchanged():
    assert differences({"a": "b there"}, {"a": 1}, where="in the state") == ['a is 1 in the state, "b there" here']


def test_split_that_only_one_document_has_is_abbreviated():
    more = PLAN | {"splits": [*PLAN["splits"], {"name": "val", "shard_samples": list(range(100))}]}
    (line,) = differences(more, PLAN)
    assert line.startswith("splits.val is null there, {")
    assert len(line) <= len("splits.val is null there,  here") + MAX_CHARACTERS


JSON = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2),
    max_leaves=3,
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON))
def test_equal_documents_do_not_differ(document):
    assert differences(document, document) == []
    assert len(differences(document | {"d": 1}, document)) == 1
