"""Clauses about files that are not as the manifest lists them."""

from dataprep.dataset.sizes import first_faults, size_faults


def test_missing_files_and_other_sizes_are_clauses():
    due = {"a": 1, "b": 2_000, "c": 3}
    assert list(size_faults(due.items(), {"a": 1, "b": 1_999, "d": 4})) == [
        "b has 1,999 bytes, expected 2,000",
        "c is missing",
    ]


def test_the_first_clauses_are_joined_and_the_others_counted():
    assert first_faults(["a", "b", "c"]) == "a; b; c"
    assert first_faults([str(number) for number in range(1_003)]) == "0; 1; 2 and 1,000 more"
