"""What a diagnosis says of the rates, and that rates which contradict each other are undecided."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.diagnosis.findings import MIN_GAIN, STAGES, Bound, StageRate, TransformCost
from loaders.diagnosis.prediction import Prediction
from loaders.diagnosis.verdict import (
    HIGHEST_RATIO,
    Measured,
    contention,
    contradiction,
    disturbance,
    limit_of,
    threads_hint,
    verdict,
)
from tests.support.findings import diagnosis


def run(observed, compute, predicted, limit=None, **parts):
    limit = limit or limit_of(observed, compute, predicted)
    return Measured(observed=observed, compute=compute, predicted=predicted, stage_limit=limit, **parts)


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


@given(rates=RATES, share=st.floats(0.01, 1.0))
def test_no_run_that_is_as_slow_as_its_slowest_stage_is_undecided(rates, share):
    assert undecided(share * min(rates.values()), rates) == ""


@given(rates=RATES, name=st.sampled_from(STAGES), excess=st.floats(1.01, 1e3))
def test_a_run_clearly_faster_than_any_one_stage_is_undecided(rates, name, excess):
    assert undecided(excess * HIGHEST_RATIO[name] * rates[name], rates).endswith(
        "Run it again while nothing else runs."
    )


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
    predicted = Prediction(observed, limit)
    assert verdict(run(observed, 100.0, predicted, limit), ()) == f"{start} No single change would bring 5 %."


def test_contention_is_a_run_more_than_a_tenth_below_its_prediction():
    assert contention(91.0, Prediction(100.0, "prepare")) == ""
    assert "the stages promise 100 images/s, together they make 80" in contention(80.0, Prediction(100.0, "prepare"))


def sentence(observed, compute, predicted):
    return verdict(run(observed, compute, predicted), ())


def test_a_run_far_below_the_rates_of_its_stages_does_not_wait_for_the_device():
    assert sentence(92.0, 137.0, Prediction(136.0, "compute")) == (
        "The stages slow each other down: 92 images/s, 67 % of what the device could take, where alone they promise "
        "136. No single change would bring 5 %."
    )
    assert sentence(40.0, 137.0, Prediction(60.0, "prepare")) == (
        "You are waiting for images to be decoded: 40 images/s, 29 % of what the device could take. The stages slow "
        "each other down, too: alone they promise 60. No single change would bring 5 %."
    )


PREDICTIONS = st.builds(Prediction, st.floats(0.1, 1e6), st.sampled_from([*STAGES, "cores"]))
SHARES = st.floats(0.001, 1.2)
"""Observed rate divided by the predicted one."""


@given(predicted=PREDICTIONS, share=SHARES, faster=st.floats(1.0, 10.0))
def test_the_device_is_named_only_near_its_rate_or_near_the_prediction(predicted, share, faster):
    observed, compute = share * predicted.images_per_s, faster * predicted.images_per_s
    if contention(observed, predicted) and observed < 0.95 * compute:
        assert limit_of(observed, compute, predicted) != "compute"
        assert "for the device" not in sentence(observed, compute, predicted)
        assert "slow each other down" in sentence(observed, compute, predicted)
    else:
        assert "slow each other down" not in sentence(observed, compute, predicted)


def disturbed(share, predicted, other_cores):
    return changed(share, predicted, predicted.limit, other_cores, other_cores)


def changed(share, predicted, limit, before, after):
    observed = share * predicted.images_per_s
    loads = {"other_cores_before": before, "other_cores_after": after}
    return disturbance(run(observed, 1e9, predicted, limit, cores=2, **loads))


def test_other_programs_that_may_explain_the_gap_are_named():
    assert disturbed(92 / 136, Prediction(136.0, "compute"), 1.18) == (
        "alone the stages promise 136 images/s, together they made 92, and other programs used 1.2 of 2 cores, which "
        "may be the reason. Run it again while nothing else runs."
    )


@given(predicted=PREDICTIONS, share=SHARES, other_cores=st.floats(0.0, 2.0))
def test_other_programs_leave_a_run_undecided_only_where_they_explain_contention(predicted, share, other_cores):
    is_undecided = bool(disturbed(share, predicted, other_cores))
    assert not (is_undecided and not contention(share * predicted.images_per_s, predicted))
    assert not disturbed(share, predicted, 0.0)
    if is_undecided:
        assert disturbed(share, predicted, other_cores + 0.5), "more of other programs explain more"
        assert other_cores / 2 >= 0.099, "few cores explain no contention"


SLOW = TransformCost(
    name="mytrans:slow",
    s_per_image=0.0056,
    cpu_s_per_image=0.0055,
    prepare_s_per_image=0.008,
    holds_lock=False,
    without=Bound(images_per_s=90.0, predicted_images_per_s=95.0, is_tried=True, gain=2.25, limit="prepare"),
)
SENTENCE = (
    "You are waiting for your transform mytrans:slow: 40 images/s, 29 % of what the device could take. It takes 5.6 of "
    "the 8.0 ms for which a thread prepares an image; without the transform: 90 images/s (making it faster can bring "
    "up to that)."
)


def with_transform(transform, limit="prepare", fixes=(), cpu_s_per_image=0.008):
    slow = run(40.0, 137.0, Prediction(41.0, limit), limit, transform=transform, cpu_s_per_image=cpu_s_per_image)
    return verdict(slow, fixes)


@pytest.mark.parametrize("limit", ["prepare", "cores"])
def test_a_transform_that_is_most_of_preparing_is_what_a_run_waits_for(limit):
    assert with_transform(SLOW, limit) == f"{SENTENCE} No setting would bring 5 %."
    fix = diagnosis().fixes[0]
    assert with_transform(SLOW, limit, [fix]).startswith(f"{SENTENCE} {fix.advice}: ")


def test_a_transform_that_is_a_smaller_part_is_named_only_with_what_it_could_bring():
    small = replace(SLOW, s_per_image=0.003, cpu_s_per_image=0.003)
    found = with_transform(small)
    assert found.startswith("You are waiting for images to be decoded: 40 images/s")
    assert "Your transform mytrans:slow takes 3.0 of the 8.0 ms" in found
    assert "No single change" not in found
    assert with_transform(replace(small, without=None)).endswith("take. No single change would bring 5 %.")
    assert with_transform(replace(SLOW, without=None)).endswith("take. No setting would bring 5 %.")
    assert with_transform(small, "cores").startswith("You are waiting for processor cores")


def test_a_loop_that_hardly_waits_is_not_said_to_wait_for_the_cores_that_its_steps_share():
    shared = run(29.0, 100.0, Prediction(30.0, "cores"), "cores", wait_share=0.07, compute_share=0.88)
    assert verdict(shared, ()) == (
        "The processor cores are the limit, which the device's steps and decoding share: 29 images/s, 29 % of what the "
        "device could take. The loop waits for a batch for 7 % of its time, but a step takes 3.0 times as long as "
        "alone. No single change would bring 5 %."
    )


def beside(observed, predicted, *, wait=0.0, transfer=0.0, fixes=(), transform=None):
    shares = {"wait_share": wait, "transfer_share": transfer, "compute_share": 1 - wait - transfer}
    found = run(observed, 3774.0, predicted, transform=transform, **shares)
    return verdict(found, fixes), found.limit


@pytest.mark.parametrize("named", ["prepare", "compute", "fetch"])
def test_a_loop_that_hardly_waits_is_said_to_make_slower_steps_whatever_the_stages_predict(named):
    fix = diagnosis().fixes[0]
    text, limit = beside(2013.0, Prediction(3584.0, named), fixes=[fix])
    assert text == (
        "Your training step is slowed down by what runs beside it: 2,013 images/s, 53 % of what the device could take. "
        "The loop waits for a batch for 0 % of its time, but a step takes 1.9 times as long as alone. Alone the stages "
        f"promise 3,584. {fix.advice}: 1,790 images/s, +127 %."
    )
    assert limit == "contention"
    assert "Alone the stages" not in beside(2013.0, Prediction(2100.0, named))[0]
    assert beside(2013.0, Prediction(3584.0, named), transform=SLOW)[0].startswith("Your training step is slowed down")


@given(predicted=PREDICTIONS, share=SHARES, faster=st.floats(1.0, 10.0), wait=st.floats(0, 0.5), sent=st.floats(0, 0.5))
def test_steps_are_called_slow_only_where_the_loop_hardly_waits_and_the_device_could_take_more(
    predicted, share, faster, wait, sent
):
    observed, compute = share * predicted.images_per_s, faster * predicted.images_per_s
    limit = limit_of(observed, compute, predicted)
    shares = {"wait_share": wait, "transfer_share": sent, "compute_share": 1 - wait - sent}
    found = run(observed, compute, predicted, **shares)
    text = verdict(found, ())
    is_slow = "step is slowed down" in text
    assert is_slow == (wait + sent < 0.05 and observed < 0.9 * compute and limit != "cores")
    assert found.limit == ("contention" if is_slow else limit)
    assert not (is_slow and "You are waiting for" in text)


@pytest.mark.parametrize(("before", "after"), [(0.1, 1.7), (1.7, 0.1)])
def test_a_load_that_changes_leaves_a_limit_of_the_cores_undecided_even_where_the_prediction_is_met(before, after):
    """Rates that were all measured beside other programs agree with each other, whatever the run reaches alone."""
    reason = changed(1.0, Prediction(100.0, "cores"), "cores", before, after)
    assert reason == (
        f"other programs used {before} of 2 cores before the measurement and {after} after it, and the run waits for "
        "what they leave. Run it again while nothing else runs."
    )
    assert changed(1.0, Prediction(100.0, "prepare"), "prepare", before, after) == reason
    assert changed(1.0, Prediction(100.0, "fetch"), "fetch", before, after) == "", "a bucket needs no core"
    assert changed(1.0, Prediction(100.0, "prepare"), "compute", before, after) == "", "the device is kept busy"


def loaded(other_cores, limit="cores", cores=2, **parts):
    found = run(50.0, 100.0, Prediction(50.0, limit), limit, cores=cores, other_cores_after=other_cores, **parts)
    return verdict(found, ())


def test_the_first_sentence_says_how_many_cores_other_programs_use():
    assert loaded(1.7) == (
        "You are waiting for processor cores, which decoding and the other stages share, while other programs use 1.7 "
        "of 2 cores: 50 images/s, 50 % of what the device could take. No single change would bring 5 %. Run it again "
        "on an idle machine."
    )
    assert "other programs" in loaded(0.8, cores=8)
    assert "other programs" not in loaded(0.7, cores=8), "fewer than a tenth of the cores"


def test_beside_programs_that_take_cores_from_a_model_that_computes_on_them_nothing_is_said_to_be_settled():
    assert loaded(2.0, "compute", compute_threads=2) == (
        "You are waiting for the device, while other programs use 2.0 of 2 cores: 50 images/s, 50 % of what the device "
        "could take. Beside these programs no single change would bring 5 %; without them one may. Run it again on an "
        "idle machine."
    )
    assert "take. No single change would bring 5 %. Run it" in loaded(2.0, "compute"), "a device of its own"
    assert loaded(0.1, "compute", compute_threads=2).endswith("take. No single change would bring 5 %.")


@pytest.mark.parametrize(
    ("together", "alone", "threads", "other_cores", "is_given"),
    [
        *((50.0, 100.0, 2, 2.0, True), (150.0, 100.0, 2, 2.0, True), (50.0, 100.0, 2, 0.2, True)),
        *((50.0, 100.0, 1, 2.0, False), (50.0, 100.0, 0, 2.0, False), (50.0, 100.0, 2, 0.1, False)),
        *((95.0, 100.0, 2, 2.0, False), (120.0, 100.0, 2, 2.0, False)),
    ],
)
def test_fewer_threads_are_named_where_other_programs_change_how_fast_several_compute(
    together, alone, threads, other_cores, is_given
):
    hint = threads_hint(together, alone, compute_threads=threads, cores=2, other_cores=other_cores)
    expected = f" The model computes with {threads} threads on these cores; fewer may help: OMP_NUM_THREADS=1."
    assert hint == (expected if is_given else "")


@given(
    limit=st.sampled_from([*STAGES, "cores", "contention"]),
    observed=st.floats(1.0, 100.0),
    compute_share=st.floats(0.0, 1.0),
    transform=st.sampled_from([None, "mytrans:slow"]),
)
def test_whatever_the_limit_is_the_first_sentence_names_the_other_programs(limit, observed, compute_share, transform):
    cost = transform and TransformCost(
        name=transform, s_per_image=1, cpu_s_per_image=1, prepare_s_per_image=1, holds_lock=False, without=None
    )
    shares = {"compute_share": compute_share, "wait_share": 1 - compute_share}
    found = run(
        observed, 100.0, Prediction(observed, limit), limit, cores=2, other_cores_after=1.7, transform=cost, **shares
    )
    first, rest = verdict(found, ()).split(" images/s", 1)
    assert ", while other programs use 1.7 of 2 cores: " in first
    assert rest.endswith(" Run it again on an idle machine.")


@given(predicted=PREDICTIONS, share=SHARES, faster=st.floats(1.0, 10.0))
def test_a_run_falls_short_only_where_closing_the_gap_is_worth_a_restart_and_the_device_could_take_more(
    predicted, share, faster
):
    observed, compute = share * predicted.images_per_s, faster * predicted.images_per_s
    found = run(observed, compute, predicted)
    if found.falls_short:
        assert predicted.images_per_s / observed >= MIN_GAIN
        assert observed < 0.95 * compute
    else:
        assert found.limit == "compute" or not found.contention


def test_a_slow_link_is_named_with_its_rate_and_with_what_was_done():
    parts = {"bytes_per_image": 110_000.0, "slow_link": "With 128 reads in flight some get no answer."}
    said = verdict(run(2.72, 2000.0, Prediction(2.8, "fetch"), "fetch", **parts), ())
    assert said == (
        "The link to the bucket is the limit: 0.3 MB/s, 2.7 images/s, 0 % of what the device could take. With 128 "
        "reads in flight some get no answer. No single change would bring 5 %."
    )
    said = verdict(run(2.72, 2.0, Prediction(2.8, "compute"), "compute", **parts), ())
    assert said.startswith("The device is the limit: 2.7 images/s")
    assert " With 128 reads in flight some get no answer." in said


def test_a_full_cache_is_said_and_the_link_to_the_bucket_not_called_the_limit():
    slow_link = "With 128 reads in flight some get no answer."
    parts = {"slow_link": slow_link, "cache": "Measured from it.", "is_cached": True}
    said = verdict(run(500.0, 2000.0, Prediction(510.0, "fetch"), "fetch", **parts), ())
    assert said == (
        "You are waiting for bytes to arrive: 500 images/s, 25 % of what the device could take. With 128 reads in "
        "flight some get no answer. Measured from it. No single change would bring 5 %."
    )
