"""The learning rate beside the published formula, computed here in another way."""

import cmath

import pytest

from dataprep.errors import UsageError
from train.optim.schedule import HalfCosine, Steps, fitted_batch, fitted_warmup, scaled_lr


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
