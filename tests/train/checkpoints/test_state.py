"""Entries of a checkpoint: of this program, of this version, all there; whatever the framework."""

import pytest

from dataprep.errors import FormatError, UsageError
from train.checkpoints.files import STATE_VERSION, check_state, taking_position

COMPLETE = {"version": STATE_VERSION, "step": 1, "arrays": {}, "loader": {}, "description": {}}


class Array:
    shape = (3,)


def test_a_state_with_all_entries_is_taken():
    check_state("x", COMPLETE, ["arrays"])


@pytest.mark.parametrize("name", ["step", "arrays", "loader", "description"])
def test_the_first_entry_that_is_missing_is_named(name):
    state = {key: value for key, value in COMPLETE.items() if key != name}
    with pytest.raises(FormatError, match=f"x: no entry '{name}'; expected a checkpoint as a run saves it"):
        check_state("x", state, ["arrays"])


def test_another_version_is_refused():
    with pytest.raises(UsageError, match="x: version 7, this program reads 1"):
        check_state("x", {**COMPLETE, "version": 7}, [])


def test_weights_without_the_state_of_a_run_are_recognised_without_their_framework():
    encoder = {"patch_embed.proj.weight": Array(), "norm.weight": Array()}
    with pytest.raises(UsageError, match=r"weights \(2 tensors\), .* `dataprep-finetune-mae --finetune` starts from"):
        check_state("x", {"model": encoder}, [])
    with pytest.raises(UsageError, match=r"no weights among its 1 entries, .*`resume` and `init` need a checkpoint"):
        check_state("x", {"lr": 1}, [])


@pytest.mark.parametrize("kind", [AttributeError, KeyError, RuntimeError, TypeError, ValueError])
def test_an_error_in_a_position_names_the_checkpoint(kind):
    with pytest.raises(FormatError, match=r"x: cannot restore .* or the random state \('?a'?\); .*: choose another"):
        with taking_position("x"):
            raise kind("a")
