"""The ResNet in JAX: an update beside SGD's formula in NumPy, in a process of JAX's own."""

import math

from tests.support.training_jax import config_of


def test_an_update_is_sgd_with_nesterovs_correction_and_vectors_do_not_decay(jax_networks):
    found = jax_networks["updates"]
    assert len(found["names"]) == 11
    for name, difference, change in zip(found["names"], found["differences"], found["changes"], strict=True):
        assert change > 1e-4, f"{name}: a change too small to be judged"
        assert difference < 1e-5, name


def test_the_learning_rate_of_every_update_follows_the_closed_formula():
    keys = {"batch_size": 8, "learning_rate": 0.4, "warmup_epochs": 1.0, "num_epochs": 3}
    schedule = config_of(**keys).schedule()
    for step in range(22):
        epoch = step * 8 / 60
        peak = 0.4 * 8 / 256
        expected = peak * epoch if epoch < 1 else peak * math.cos(math.pi * (epoch - 1) / 4) ** 2
        assert math.isclose(schedule.at(epoch), expected, rel_tol=1e-12, abs_tol=0 if step == 0 else 1e-15)
