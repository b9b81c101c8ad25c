"""Hosts save together: a checkpoint is there when every part is, and old parts go with their list."""

import pytest

from dataprep.errors import DataprepError
from tests.support.parted_states import cut_state, same, save, state
from train.checkpoints.checkpoint import CheckpointFolder, load_any
from train.checkpoints.part_folder import PartFolder
from train.checkpoints.parts import FOLDER


def test_a_checkpoint_saved_by_several_hosts_is_read_by_any_number(storage_url):
    save(storage_url, 3, 2)
    folder = CheckpointFolder(storage_url)
    (found,) = folder.list()
    assert same(folder.load(found), state(3))
    assert same(load_any(f"{storage_url}/{found.name}"), state(3))


def test_saving_together_leaves_a_list_and_its_parts_alone_in_the_folder(tmp_path):
    save(str(tmp_path), 3, 2)
    (found,) = CheckpointFolder(str(tmp_path)).list()
    assert {path.name for path in tmp_path.iterdir()} == {found.name, FOLDER.rstrip("/")}


def test_no_checkpoint_is_made_while_a_hosts_part_is_missing(tmp_path):
    save(str(tmp_path), 1, 2)
    folder = PartFolder(str(tmp_path), rank=0, world_size=2, wait_s=0)
    with pytest.raises(DataprepError, match=r"no part of step 2 of host 1 after 0 s; --output_dir must be"):
        folder.save(2, cut_state(state(2), 0, 2))
    told = []
    found, loaded = folder.newest_valid(told.append)
    assert (found.step, loaded["step"], told) == (1, 1, [])
    assert len(list((tmp_path / FOLDER).iterdir())) == 3
    folder.remove_unfinished()
    assert len(list((tmp_path / FOLDER).iterdir())) == 2
    assert same(folder.load(found), state(1))


def test_the_newest_checkpoints_are_kept_with_their_parts(tmp_path):
    for step in (1, 2, 3):
        save(str(tmp_path), step, 2, keep=2)
    folder = CheckpointFolder(str(tmp_path), keep=1)
    assert [each.step for each in folder.list()] == [3, 2]
    assert len(list((tmp_path / FOLDER).iterdir())) == 4
    folder.save(4, state(4))  # a run without FSDP goes on
    assert [each.step for each in folder.list()] == [4]
    assert not list((tmp_path / FOLDER).iterdir())
