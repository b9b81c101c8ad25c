"""Lists of parts: a damaged list or part makes a checkpoint that is skipped, and nothing else is lost."""

import hashlib
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dataprep.errors import DataprepError, FormatError, UsageError
from dataprep.storage import open_storage
from tests.support import warm
from tests.support.parted_states import cut_state, same, save, state
from tests.support.shared_process import REPOSITORY
from train.checkpoints.checkpoint import CheckpointFolder, load_any
from train.checkpoints.parts import FOLDER, PartFolder, Pieces, begin_save, part_of, whole_of


@pytest.mark.parametrize("what", ["list", "part"])
def test_damaged_checkpoints_are_skipped_and_the_reason_is_printed(tmp_path, what):
    for step in (1, 2):
        save(str(tmp_path), step, 2)
    pattern = {"list": "checkpoint-000000002-*.json", "part": f"{FOLDER}checkpoint-000000002-*-00001-of-*.pth"}[what]
    (path,) = tmp_path.glob(pattern)
    path.write_bytes(path.read_bytes()[:-1])
    told = []
    found, loaded = CheckpointFolder(str(tmp_path)).newest_valid(told.append)
    assert (found.step, loaded["step"]) == (1, 1)
    (line,) = told
    assert line.startswith(str(path))
    assert line.endswith("damaged; skipped")


def test_a_missing_part_is_named(tmp_path):
    save(str(tmp_path), 1, 2)
    (path,) = tmp_path.glob(f"{FOLDER}*-00001-*.pth")
    path.unlink()
    told = []
    assert CheckpointFolder(str(tmp_path)).newest_valid(told.append) is None
    assert path.name in told[0]


@pytest.mark.parametrize("document", [[], "parts", {"version": 1}, {"version": 1, "parts": [{}]}])
def test_a_list_without_names_of_parts_is_skipped_and_other_checkpoints_are_kept(tmp_path, document):
    save(str(tmp_path), 1, 2)
    data = json.dumps(document).encode()
    name = f"checkpoint-000000009-{hashlib.sha256(data).hexdigest()[:16]}.json"
    (tmp_path / name).write_bytes(data)
    told = []
    folder = PartFolder(str(tmp_path), rank=0, world_size=2)
    found, _ = folder.newest_valid(told.append)
    assert found.step == 1
    assert told[0].startswith(str(tmp_path / name))
    folder.remove_unfinished()
    assert same(folder.load(found), state(1))


def test_a_list_of_a_newer_version_is_neither_skipped_nor_moved(tmp_path):
    save(str(tmp_path), 1, 2)
    data = json.dumps({"version": 2}).encode()
    name = f"checkpoint-000000009-{hashlib.sha256(data).hexdigest()[:16]}.json"
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match="version 2, this program reads 1"):
        CheckpointFolder(str(tmp_path)).newest_valid(print, move_damaged=True)
    assert (tmp_path / name).exists()


def test_values_in_two_parts_are_named():
    twice = [part_of(cut_state(state(1), 0, 2), has_rest=rank == 0) for rank in range(2)]
    with pytest.raises(FormatError, match=r"^model/a: the values \[0:\d+, 0:\d+\] are in two parts$"):
        whole_of(twice)
    pieces = [Pieces((4,), [((start,), torch.zeros(3))]) for start in (0, 1)]
    overlapping = [part_of({"a": piece}, has_rest=rank == 0) for rank, piece in enumerate(pieces)]
    with pytest.raises(FormatError, match=r"^a: 2 values are in two parts$"):
        whole_of(overlapping)


def test_pieces_without_values_may_begin_at_the_same_place():
    pieces = [Pieces((2,), [((start,), torch.ones(length))]) for start, length in ((0, 2), (2, 0), (2, 0))]
    parts = [part_of({"a": piece}, has_rest=rank == 0) for rank, piece in enumerate(pieces)]
    assert same(whole_of(parts), {"a": torch.ones(2)})


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
    with pytest.raises(DataprepError, match=r"no part of step 2 of host 1 after 0 s; is that host still running"):
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


@pytest.fixture
def hosts(tmp_path):
    """Runs a process for each folder, a host; returns what each of its words led to, for each host."""
    meetings = iter(range(99))

    def run(words, *names):
        meeting = tmp_path / f"meeting-{next(meetings)}"
        meeting.mkdir()
        processes = [
            warm.start(
                "tests.support.own_disk",
                *(str(rank), str(len(names)), str(tmp_path / name), str(meeting), *words.split()),
                environment=os.environ,
                folder=REPOSITORY,
            )
            for rank, name in enumerate(names)
        ]
        ended = [process.communicate(timeout=60) for process in processes]
        assert all(process.returncode == 0 for process in processes), ended
        return [[json.loads(line) for line in output.splitlines()] for output, _ in ended]

    return run


def test_hosts_with_their_own_disks_resume_where_their_parts_are(hosts, tmp_path):
    """Two folders stand for the disks of two hosts."""
    assert hosts("newest save:1 save:2 newest", "a", "b") == [[None, 1, 2, 2]] * 2
    assert hosts("newest at:1 save:3 newest", "a", "b") == [[2, 1, 3, 3]] * 2
    assert [len(list((tmp_path / name / FOLDER).iterdir())) for name in "ab"] == [2, 2]
    line = (
        "a/checkpoint-000000003-[0-9a-f]{16}.json: each host wrote its part on its own disk, and a disk here lacks "
        "part %d of 2, which host 'tpu-w-%d' wrote. Resume on the same hosts in the same order, or copy all their "
        "folders into one that all hosts see"
    )
    for disks, lacking in ((("b", "a"), 0), (("a", "new"), 1)):
        (first,), (second,) = hosts("newest", *disks)
        assert re.search(line % (lacking, lacking), first.replace("/b/", "/a/")), first
        assert second == first
    with pytest.raises(UsageError, match=line % (1, 1)):
        load_any(str(next((tmp_path / "a").glob("checkpoint-000000003-*.json"))))
    for name in "ab":
        shutil.copytree(tmp_path / name, tmp_path / "all", dirs_exist_ok=True)
    assert hosts("newest save:4", "all", "all") == [[3, 4]] * 2
    assert hosts("newest", "all", "all") == [[4]] * 2
    folder = CheckpointFolder(str(tmp_path / "all"))
    assert [same(folder.load(each), state(each.step)) for each in folder.list()] == [True, True]
    next((tmp_path / "b").glob("checkpoint-000000003-*.json")).unlink()  # its host was killed before it wrote this
    assert hosts("newest", "a", "b") == [[2]] * 2


def test_a_part_that_is_damaged_on_one_disk_is_skipped_by_all_hosts(hosts, tmp_path):
    hosts("save:1 save:2", "a", "b")
    (path,) = (tmp_path / "b" / FOLDER).glob("checkpoint-000000002-*")
    path.write_bytes(path.read_bytes()[:-9])
    assert hosts("newest", "a", "b") == [[1]] * 2
