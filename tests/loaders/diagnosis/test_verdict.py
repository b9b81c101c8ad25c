"""What a diagnosis says of the rates, and that rates which contradict each other are undecided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.diagnosis.findings import STAGES, StageRate
from loaders.diagnosis.prediction import Prediction
from loaders.diagnosis.verdict import HIGHEST_RATIO, contention, contradiction, verdict

RATES = st.fixed_dictionaries({name: st.floats(0.1, 1e6) for name in STAGES})


def stages(rates):
    return [StageRate(name=name, images_per_s=rates[name], cpu_s_per_image=0.0) for name in STAGES]


def undecided(observed, rates, *, cores=2, other_cores=0.0):
    return contradiction(observed, stages(rates), cores=cores, other_cores=other_cores)


def test_a_run_three_times_as_fast_as_its_device_alone_is_undecided():
    rates = {"fetch": 9000.0, "prepare": 400.0, "transfer": 9000.0, "compute": 30.0}
    assert undecided(104.0, rates, other_cores=1.62) == (
        "the run made 104 images/s, but the device alone took only 30: the machine was not equally fast during both "
        "measurements, and other programs used 1.6 of 2 cores meanwhile. Run it again while nothing else runs."
    )
    assert "other programs used" not in undecided(104.0, rates), "their cores are unknown"


def test_a_simulated_device_without_a_limit_contradicts_nothing():
    rates = {"fetch": 9000.0, "prepare": 400.0, "transfer": float("inf"), "compute": float("inf")}
    assert undecided(399.0, rates) == ""


@given(rates=RATES, share=st.floats(0.01, 1.0))
def test_no_run_that_is_as_slow_as_its_slowest_stage_is_undecided(rates, share):
    assert undecided(share * min(rates.values()), rates) == ""


@given(rates=RATES, name=st.sampled_from(STAGES), excess=st.floats(1.01, 1e3))
def test_a_run_clearly_faster_than_any_one_stage_is_undecided(rates, name, excess):
    assert undecided(excess * HIGHEST_RATIO[name] * rates[name], rates).endswith(
        "Run it again while nothing else runs."
    )


@given(rates=RATES, observed=st.floats(0.1, 1e6), factor=st.floats(1.0, 1e3))
def test_a_faster_run_is_undecided_wherever_a_slower_one_is(rates, observed, factor):
    assert not undecided(observed, rates) or undecided(factor * observed, rates)


@pytest.mark.parametrize(
    ("observed", "limit", "start"),
    [
        (
            99.0,
            "compute",
            "The device is the limit: 99 images/s, 99 % of what the device could take; its input keeps up.",
        ),
        (40.0, "fetch", "You are waiting for bytes to arrive: 40 images/s, 40 % of what the device could take."),
    ],
)
def test_the_sentence_names_the_limit(observed, limit, start):
    assert verdict(observed, 100.0, limit, ()) == f"{start} No single change would bring 5 %."


def test_contention_is_a_run_more_than_a_tenth_below_its_prediction():
    assert contention(91.0, Prediction(100.0, "prepare")) == ""
    assert "the stages promise 100 images/s, together they make 80" in contention(80.0, Prediction(100.0, "prepare"))
