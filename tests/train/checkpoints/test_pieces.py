"""Parts of a state are put together again, and what is missing is noticed."""

import pytest

from dataprep.errors import FormatError
from tests.support.parted_states import cut_state, same, state
from train.checkpoints.parts import part_of, whole_of


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_parts_are_joined_to_the_whole_state(world_size):
    parts = [part_of(cut_state(state(7), rank, world_size), has_rest=rank == 0) for rank in range(world_size)]
    assert same(whole_of(parts), state(7))


def test_missing_parts_are_detected():
    parts = [part_of(cut_state(state(7), rank, 2), has_rest=rank == 0) for rank in range(2)]
    with pytest.raises(FormatError, match="model/a: 12 values are in no part"):
        whole_of(parts[:1])
    with pytest.raises(FormatError, match="the first host's part is missing"):
        whole_of(parts[1:])
