"""Hosts save together: a checkpoint is there when every part is, and old parts go with their list."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from dataprep.errors import DataprepError, FormatError
from dataprep.storage import open_storage
from tests.support.parted_states import cut_state, same, save, state
from train.checkpoints.checkpoint import CheckpointFolder, load_any
from train.checkpoints.parts import FOLDER, PartFolder, begin_save


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
    with pytest.raises(DataprepError, match=r"no part of step 2 of host 1 after 0 s; `output_dir` must be"):
        folder.save(2, cut_state(state(2), 0, 2))
    told = []
    found, loaded = folder.newest_valid(told.append)
    assert (found.step, loaded["step"], told) == (1, 1, [])
    assert len(list((tmp_path / FOLDER).iterdir())) == 4  # its own part, and the file that begins the save
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


@pytest.mark.parametrize("first", [0, 1])
def test_going_back_takes_no_part_of_the_branch_that_was_left(tmp_path, first):
    for values in (1, 2):  # the second run went back to an earlier step
        folders = [PartFolder(str(tmp_path), rank=rank, world_size=2, keep=5) for rank in range(2)]
        folders[0].remove_unfinished()
        with ThreadPoolExecutor(2) as pool:
            pool.submit(folders[first].save, 30, cut_state(state(values), first, 2))
            pool.submit(folders[1 - first].save, 30, cut_state(state(values), 1 - first, 2)).result()
    found = [repr(folders[0].load(each)) for each in folders[0].list()]
    assert sorted(found) == sorted(repr(state(values)) for values in (1, 2))


def test_a_part_of_a_second_process_of_a_host_ends_the_save(tmp_path):
    save(str(tmp_path), 1, 2)
    storage = open_storage(str(tmp_path))
    begun = begin_save(storage, 2)
    for digest in ("0" * 16, "1" * 16):
        storage.create(begun.part_name(1, 2, digest), b"")
    with pytest.raises(DataprepError, match=r"host 1 already has a part, .*\. Two processes are running as host 1"):
        begun.parts(storage)


def test_a_host_that_finds_no_begun_save_says_so(tmp_path):
    folder = PartFolder(str(tmp_path), rank=1, world_size=2, wait_s=0)
    with pytest.raises(DataprepError, match="host 0 has not begun to save step 2 after 0 s"):
        folder.save(2, cut_state(state(2), 1, 2))
    assert not list(tmp_path.glob("parts/*"))


def test_a_list_of_parts_of_two_saves_is_no_checkpoint(tmp_path):
    for values in (1, 2):
        save(str(tmp_path), values, 2)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("parts/*.pth"))
    for parts in (names[:1] + names[3:], names[:1], names[1::-1], names):
        data = json.dumps({"version": 1, "step": 1, "parts": parts}).encode()
        path = tmp_path / f"checkpoint-000000001-{hashlib.sha256(data).hexdigest()[:16]}.json"
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"is not part \d of \d of one save"):
            load_any(str(path))
