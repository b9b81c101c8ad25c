"""The learning rate beside the published formula, computed here in another way."""

import cmath
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from train.optim.schedule import HalfCosine, Steps, fitted_batch, fitted_warmup, parse_ramp, scaled_lr


@pytest.mark.parametrize(
    "epoch", [0, 0.5, 1, 10, 20, 39, 39.99, 40, 40.01, 41, 60, 100, 200, 400, 419.5, 600, 700, 780, 799, 800]
)
def test_the_rate_rises_linearly_then_follows_half_a_cosine(epoch):
    """MAE's recipe: 2.4e-3 at the peak, 40 of 800 epochs to get there, to 0 at the end."""
    expected = (
        2.4e-3 * epoch / 40 if epoch < 40 else 2.4e-3 * (1 + cmath.exp(1j * cmath.pi * (epoch - 40) / 760).real) / 2
    )
    assert HalfCosine(lr=2.4e-3, min_lr=0, warmup_epochs=40, epochs=800).at(epoch) == pytest.approx(expected, abs=1e-12)


def test_the_rate_ends_at_its_minimum_and_stays_there():
    schedule = HalfCosine(lr=1.0, min_lr=0.25, warmup_epochs=0, epochs=10)
    assert [schedule.at(epoch) for epoch in (0, 5, 10, 12)] == [1.0, 0.625, 0.25, 0.25]


def test_the_base_rate_is_given_for_a_batch_of_256():
    assert scaled_lr(1.5e-4, 4096) == pytest.approx(2.4e-3)


@pytest.mark.parametrize(
    ("most", "images", "shares", "expected"),
    [
        (128, 95, 1, 16),
        (128, 735, 1, 32),
        (128, 2560, 1, 128),
        (128, 2559, 1, 64),
        (1024, 1_281_167, 256, 1024),
        (1024, 2000, 256, 256),
        (96, 300, 1, 24),
        (8, 20, 1, 8),
    ],
)
def test_small_data_get_a_smaller_batch_that_devices_can_share(most, images, shares, expected):
    assert fitted_batch(most, images, shares) == expected


def test_a_short_run_warms_up_for_the_same_share():
    assert [fitted_warmup(10.0, 90, epochs) for epochs in (9, 90, 900)] == [1.0, 10.0, 10.0]


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(UsageError, match="`warmup_epochs` 40 of 10 epochs"):
        HalfCosine(lr=1.0, min_lr=0, warmup_epochs=40, epochs=10)


def test_the_rate_is_divided_every_given_number_of_epochs():
    schedule = Steps(lr=0.5, divisor=5, every_epochs=20)
    epochs = (0, 19.999, 20, 39.9, 40)
    assert [schedule.at(epoch) for epoch in epochs] == pytest.approx([0.5, 0.5, 0.1, 0.1, 0.02])


@given(
    first=st.integers(1, 512),
    doublings=st.integers(1, 6),
    length=st.integers(1, 10**6),
    unit=st.sampled_from(["epochs", "images", "steps"]),
    epoch_images=st.integers(1, 10**5),
)
def test_a_ramp_doubles_after_equal_parts_of_its_length(first, doublings, length, unit, epoch_images):
    last = first << doublings
    ramp = parse_ramp(f"{first}:{last}@{length}{unit}")
    try:
        starts = ramp.starts(epoch_images, 10**6)
    except UsageError:
        assume(False)
    assert starts[0] == (0, first)
    assert starts[-1][1] == ramp.last == last
    whole = length * epoch_images if unit == "epochs" else length
    parts = []
    for (start, size), (stop, following) in pairwise(starts):
        assert following == 2 * size
        parts.append((stop - start) // (size if unit == "steps" else 1))
    assert sum(parts) == whole
    assert max(parts) - min(parts) <= 1
    assert ramp.shares(lambda batch: batch / 7) == pytest.approx({size: size / last for _, size in starts})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "256",
            "expected FIRST:LAST@LENGTH with epochs, images or steps as the unit of the length, e.g. 256:1024@20ep",
        ),
        ("256:1024@20", "expected FIRST:LAST@LENGTH"),
        ("256:1024@-1epochs", "expected FIRST:LAST@LENGTH"),
        ("1024:256@20epochs", "a batch grows from 1 or more to a larger one over more than 0 epochs"),
        ("256:1024@0steps", "a batch grows from 1 or more to a larger one over more than 0 steps"),
        ("256:1000@20epochs", "256 doubles to 512, 1,024, not to 1,000; choose one of these as the last size"),
        ("256:1024@1steps", "one of 2 equal parts is 0 images long, less than its batch of 256; choose a longer ramp"),
        ("256:1024@0.3epochs", "one of 2 equal parts is 150 images long, less than its batch of 256; choose a longer"),
        ("256:1024@11epochs", "the ramp takes 11,000 images, the run has 10 x 1,000 = 10,000; choose a shorter ramp"),
    ],
)
def test_an_impossible_ramp_is_refused_with_its_arithmetic(text, why):
    with pytest.raises(UsageError) as refused:
        parse_ramp(text).starts(1000, 10)
    assert str(refused.value).startswith(f"`batch_ramp` {text}: {why}")
    assert "\n" not in str(refused.value)


def test_no_text_is_no_ramp():
    assert parse_ramp("") is None
