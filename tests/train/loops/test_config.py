"""When the loop logs, evaluates and saves: beside the same rules written another way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.order import Order
from train.loops.config import LoopConfig, ended_epochs


def order_of(images: int, batch: int, passes: int = 1) -> Order:
    return Order(shard_samples=(images,), seed=0, global_batch=batch, samples_per_block=1, passes=passes)


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 3), st.integers(0, 40))
def test_an_epoch_ends_with_the_last_batch_that_lies_in_it(images, batch, passes, step):
    samples = images * passes
    expected = [epoch for epoch in range(1, 2000) if epoch * samples // batch == step and step > 0]
    assert list(ended_epochs(order_of(images, batch, passes), step)) == expected


@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(0, 7),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_logs_evaluations_and_checkpoints_are_due_after_the_right_steps(
    images, batch, epochs, steps_between, log_epochs, eval_epochs
):
    order = order_of(images, batch)
    config = LoopConfig(
        epochs=epochs,
        log_interval_steps=steps_between,
        log_interval_epochs=log_epochs,
        eval_interval=eval_epochs,
        ckpt_interval=2,
        first_saved_epoch=1,
        ckpt_interval_steps=steps_between,
    )
    for step in range(1, order.first_batch(epochs) + 1):
        ended = ended_epochs(order, step)
        by_step = bool(steps_between) and step in range(0, 10**4, steps_between)
        logged = bool(log_epochs) and any(epoch in range(0, 10**4, log_epochs) for epoch in ended)
        evaluated = bool(eval_epochs) and any(epoch in (*range(0, 10**4, eval_epochs), epochs) for epoch in ended)
        saved = any(epoch in (*range(2, 10**4, 2), epochs) for epoch in ended)
        assert config.is_log_due(step, ended) == (by_step or logged)
        assert config.is_evaluation_due(ended) == evaluated
        assert config.is_save_due(step, ended) == (by_step or saved)


@pytest.mark.parametrize(("max_steps", "last"), [(0, 15), (4, 4), (100, 15)])
def test_a_run_ends_after_its_epochs_or_a_number_of_steps(max_steps, last):
    assert LoopConfig(epochs=2, max_steps=max_steps).last_step(order_of(60, 8)) == last


def test_a_checkpoint_is_due_after_the_given_minutes():
    assert not LoopConfig(epochs=1).is_save_due_after(1e9)
    assert not LoopConfig(epochs=1, ckpt_interval_minutes=2).is_save_due_after(119)
    assert LoopConfig(epochs=1, ckpt_interval_minutes=2).is_save_due_after(120)
