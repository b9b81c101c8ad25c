"""The JAX backend, in a process of its own; that it trains, stops and resumes, the tests of its entry show."""

import pytest


@pytest.fixture
def found(jax_networks):
    return jax_networks["backend"]


def test_a_restored_state_trains_on_with_the_same_losses(found):
    backend = found
    assert backend["after"] == backend["again"]
    assert backend["after"] != backend["before"]
    assert backend["after"][-1] < backend["before"][0]


def test_a_measured_step_changes_no_weight(found):
    assert found["rate_0"]


def test_without_a_validation_loader_nothing_is_evaluated(found):
    assert found["evaluated"] == {}


def test_a_single_process_is_the_first_and_handles_signals_itself(found):
    assert found["facts"] == ["cpu", True, 2, True]
    assert found["stops"] == [False, True]


def test_one_number_of_any_saved_array_that_is_not_finite_is_found(found):
    answers = found["not finite"]
    assert answers.pop("") == []
    assert len(answers) == 4
    for changed, names in answers.items():
        name, _, number = changed.rpartition(" ")
        assert names == ([] if number == "3e+38" else [name])
