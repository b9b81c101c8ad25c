"""The values that travel between processes are frozen, and arrive as they were sent."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest

from dataprep.dataset import records
from dataprep.dataset.records import NO_LABEL, Event, SampleRef, ShardPlan, ShardReceipt

VALUES = [each for each in vars(records).values() if is_dataclass(each) and each.__module__ == records.__name__]


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_a_value_cannot_be_changed_and_has_no_other_fields(kind: type):
    value = object.__new__(kind)
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(kind)[0].name, 1)
    assert not hasattr(value, "__dict__")


def test_values_arrive_in_another_process_as_they_were_sent():
    ref = SampleRef("train/x", "train.tar", 512, 100)
    plan = ShardPlan(index=3, split="train", split_index=1, split_shards=2, refs=(ref, ref))
    receipt = ShardReceipt(3, "train", 1, "train/x.tar", 2, 200, "ab", "AAAAAA==", (Event("k", "repaired", "png", ""),))
    for value in (plan, receipt):
        again = pickle.loads(pickle.dumps(value))
        assert again == value
        assert hash(again) == hash(value)
    assert ref.label == NO_LABEL
