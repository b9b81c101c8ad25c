"""How weights are cut, what the plan says of them, and parts of a state that are put together again."""

import json
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import DataprepError, FormatError
from train.checkpoint import CheckpointFolder, load_any
from train.fsdp import cut_dimension, plan_of
from train.models.vit import BlockConfig, VisionTransformer, ViTConfig
from train.parts import FOLDER, PartFolder
from train.pieces import Pieces, part_of, whole_of
from train.train_vit import command, plan
from train.vit_flags import Flags

# How weights are cut


@given(st.lists(st.integers(1, 4096), max_size=4), st.integers(1, 512))
def test_all_devices_get_as_much_of_the_longest_dimension_that_allows_it(shape, num_devices):
    cut = cut_dimension(shape, num_devices)
    equal = [length for length in shape if length % num_devices == 0]
    assert (cut is None) == (not equal)
    if cut is not None:
        assert shape[cut] == max(equal)


def test_the_plan_of_ten_billion_parameters(capsys):
    started_s = time.process_time()
    found = plan(Flags())
    assert time.process_time() - started_s < 5
    in_blocks = sum(share.bytes // 4 for share in found.shares if share.name.startswith("blocks."))
    assert (round(in_blocks / 1e9, 2), found.parameters) == (10.07, 10_077_917_160)
    assert found.bytes == 4 * found.parameters
    assert found.bytes / 128 <= found.bytes_per_device < 1.0001 * found.bytes / 128
    assert command.main(["--plan", "--plan_devices", "256", "--json"], standalone_mode=False) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["devices"], document["parameters"]) == (256, found.parameters)
    assert document["training_bytes_per_device"] == 4 * sum(each["bytes_per_device"] for each in document["weights"])
    assert command.main(["--plan"], standalone_mode=False) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "blocks.31.mlp.fc1.weight 20480/128 x 5120 419,430,400 3,276,800" in text
    assert "10,077,917,160 parameters, 40,311,668,640 bytes; on each of 128 devices 314,938,880" in text


def test_other_flags_make_other_plans():
    config = ViTConfig(
        image_size=16, patch_size=8, depth=1, block=BlockConfig(dim=16, num_heads=2), num_classes=10,
        pool="average", class_token=False,
    )  # fmt: skip
    model = VisionTransformer(config)
    found = plan_of(model, 8)
    held = {share.name: share.bytes_per_device for share in found.shares}
    assert held["head.weight"] == 10 * 16 * 4 / 8
    assert held["head.bias"] == 10 * 4, "ten logits are not for eight devices"
    assert plan_of(model, 1).bytes_per_device == found.bytes == sum(each.nbytes for each in model.parameters())


# Parts of a state


def state(step: int) -> dict:
    weights = {"a": torch.arange(24.0).reshape(4, 6) + step, "b": torch.ones(3)}
    return {"step": step, "model": weights, "optimizer": {"state": {0: {"m": torch.arange(8)}}, "groups": [{"lr": 1}]}}


def cut_state(whole: dict, rank: int, world_size: int) -> dict:
    """What one of several hosts holds: some rows of `a`, some of `m`."""
    a, m = whole["model"]["a"], whole["optimizer"]["state"][0]["m"]

    def of(tensor):
        rows = len(tensor) // world_size
        start = (rank * rows, *[0] * (tensor.dim() - 1))
        return Pieces(tuple(tensor.shape), [(start, tensor[rank * rows : (rank + 1) * rows].clone())])

    optimizer = {"state": {0: {"m": of(m)}}, "groups": whole["optimizer"]["groups"]}
    return {**whole, "model": {**whole["model"], "a": of(a)}, "optimizer": optimizer}


def same(left: object, right: object) -> bool:
    return repr(left) == repr(right)


def save(url: str, step: int, world_size: int, **settings) -> None:
    """All hosts, at once, the first one before the others."""
    folders = [PartFolder(url, rank=rank, world_size=world_size, **settings) for rank in range(world_size)]
    jobs = [
        threading.Thread(target=folder.save_part, args=(step, cut_state(state(step), rank, world_size)))
        for rank, folder in enumerate(folders)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_parts_become_the_whole_state(world_size):
    parts = [part_of(cut_state(state(7), rank, world_size), rank=rank) for rank in range(world_size)]
    assert same(whole_of(parts), state(7))


def test_parts_that_are_missing_are_noticed():
    parts = [part_of(cut_state(state(7), rank, 2), rank=rank) for rank in range(2)]
    with pytest.raises(FormatError, match="model/a: 12 values are in no part"):
        whole_of(parts[:1])
    with pytest.raises(FormatError, match="the first host's is missing"):
        whole_of(parts[1:])


def test_hosts_save_together_and_anyone_reads_it(storage_url):
    save(storage_url, 3, 2)
    folder = CheckpointFolder(storage_url)
    (found,) = folder.list()
    assert same(folder.load(found), state(3))
    assert same(load_any(f"{storage_url}/{found.name}"), state(3))


def test_without_another_hosts_part_there_is_no_checkpoint(tmp_path):
    save(str(tmp_path), 1, 2)
    folder = PartFolder(str(tmp_path), rank=0, world_size=2, wait_s=0)
    with pytest.raises(DataprepError, match=r"no part of step 2 of host 1 after 0 s; --output_dir must be"):
        folder.save_part(2, cut_state(state(2), 0, 2))
    told = []
    found, loaded = folder.newest_valid(told.append)
    assert (found.step, loaded["step"], told) == (1, 1, [])
    assert len(list((tmp_path / FOLDER).iterdir())) == 3
    folder.remove_unfinished()
    assert len(list((tmp_path / FOLDER).iterdir())) == 2
    assert same(folder.load(found), state(1))


def test_the_newest_stay_with_their_parts(tmp_path):
    for step in (1, 2, 3):
        save(str(tmp_path), step, 2, keep=2)
    folder = CheckpointFolder(str(tmp_path), keep=1)
    assert [each.step for each in folder.list()] == [3, 2]
    assert len(list((tmp_path / FOLDER).iterdir())) == 4
    folder.save(4, state(4))  # a run without FSDP goes on
    assert [each.step for each in folder.list()] == [4]
    assert not list((tmp_path / FOLDER).iterdir())


@pytest.mark.parametrize("what", ["list", "part"])
def test_damaged_ones_are_skipped_with_the_reason(tmp_path, what):
    for step in (1, 2):
        save(str(tmp_path), step, 2)
    pattern = {"list": "checkpoint-000000002-*.json", "part": f"{FOLDER}checkpoint-000000002-00001-*.pth"}[what]
    (path,) = tmp_path.glob(pattern)
    path.write_bytes(path.read_bytes()[:-1])
    told = []
    found, loaded = CheckpointFolder(str(tmp_path)).newest_valid(told.append)
    assert (found.step, loaded["step"]) == (1, 1)
    (line,) = told
    assert line.startswith(str(path))
    assert line.endswith("damaged; skipped")


def test_a_part_that_is_gone_is_said(tmp_path):
    save(str(tmp_path), 1, 2)
    (path,) = tmp_path.glob(f"{FOLDER}*-00001-*.pth")
    path.unlink()
    told = []
    assert CheckpointFolder(str(tmp_path)).newest_valid(told.append) is None
    assert path.name in told[0]
