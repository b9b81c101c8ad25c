"""Numbers that wait to be looked at: all of them count, and the first loss that is not finite ends the run."""

import json
import math

import pytest

from dataprep.errors import DataprepError
from train.loops.loop import Unread


def unread(losses: list[float], folder=None) -> Unread:
    found = Unread(folder)
    for step, loss in enumerate(losses, start=1):
        found.add(step, {"loss": loss, "accuracy": step}, [f"key-{step}-{number}" for number in range(6)])
    return found


def test_means_are_over_every_update_since_the_last_line():
    found = unread([1.0, 2.0, 6.0])
    assert found.take() == {"loss": 3.0, "accuracy": 2.0}
    assert found.take() == {}


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_the_first_loss_that_is_not_finite_is_reported_with_its_keys(tmp_path, loss):
    for look in ("check", "take"):
        with pytest.raises(
            DataprepError, match=rf"step 2: the loss is {loss}.*key-2-0, key-2-1, key-2-2, key-2-3, all"
        ):
            getattr(unread([1.0, loss, math.nan, 1.0], tmp_path), look)()
    report = json.loads((tmp_path / "not-finite-000000002.json").read_text())
    assert report == {"step": 2, "loss": str(loss), "keys": [f"key-2-{number}" for number in range(6)]}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_evaluation_that_is_not_finite_ends_the_run(value):
    with pytest.raises(DataprepError) as error:
        unread([1.0]).judge(7, {"accuracy": 0.5, "loss": value})
    assert (str(error.value), error.value.exit_code) == (
        f"step 7: the loss of the evaluation is {value}, expected a finite one; nothing is kept, because no checkpoint "
        "was saved; try a lower learning rate, a longer warm-up or a lower weight decay",
        1,
    )
    with pytest.raises(DataprepError, match="step 1: the loss is nan"):  # which says more: the samples
        unread([math.nan]).judge(7, {"loss": value})


def test_checking_losses_keeps_them():
    found = unread([1.0, 3.0])
    found.check()
    assert found.take()["loss"] == 2.0


@pytest.mark.parametrize(
    ("names", "what"),
    [(["head.bias"], "head.bias"), (["cls_token", "head.weight", "head.bias"], "cls_token and 2 more arrays")],
)
@pytest.mark.parametrize(
    ("saved_step", "kept"),
    [
        (-1, "nothing is kept, because no checkpoint was saved"),
        (1200, "nothing after the checkpoint of step 1,200 is kept"),
    ],
)
def test_weights_that_are_not_finite_are_reported_with_the_newest_checkpoint(names, what, saved_step, kept):
    found = Unread(None, saved_step)
    found.refuse(1400, [])
    with pytest.raises(DataprepError) as error:
        found.refuse(1400, names)
    assert str(error.value) == (
        f"step 1400: values that are not finite in {what}, expected finite ones in a checkpoint, so none is written; "
        f"{kept}; try a lower learning rate, a longer warm-up or a lower weight decay"
    )
