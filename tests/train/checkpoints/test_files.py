"""Files of checkpoints: names, digests, and how states are read."""

import argparse
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten

from dataprep.errors import FormatError, UsageError
from train.checkpoints.checkpoint import CheckpointFolder
from train.checkpoints.files import (
    ARRAYS,
    NUMPY,
    STATE_VERSION,
    TORCH,
    Checkpoint,
    check_state,
    digest_of,
    load_file,
    taking_position,
)


def test_a_name_says_step_and_digest():
    name = "checkpoint-000000400-5f2b8c6a90d1e37c.pth"
    assert TORCH.parse(name) == Checkpoint(name, 400, "5f2b8c6a90d1e37c")
    assert TORCH.parse(name.replace(".pth", ".json")).is_list
    for other in ("checkpoint-400-5f2b8c6a90d1e37c.pth", name.replace(".pth", ".npz"), f"{name}.tmp", f"x{name}"):
        assert TORCH.parse(other) is None, other


def test_a_state_of_arrays_comes_back_with_its_document(tmp_path):
    state = {"version": 1, "loader": {"position": 8}, ARRAYS: {"params/a": np.arange(6.0).reshape(2, 3)}}
    NUMPY.write(state, tmp_path / "a")
    found = load_file(tmp_path / "a", digest_of(tmp_path / "a"), NUMPY)
    assert np.array_equal(found.pop(ARRAYS)["params/a"], state.pop(ARRAYS)["params/a"])
    assert found == state


def test_the_same_state_is_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        NUMPY.write({"version": 1, ARRAYS: {"w": np.ones(3)}}, tmp_path / name)
    assert digest_of(tmp_path / "a") == digest_of(tmp_path / "b")


def test_a_file_of_torch_is_read_as_torch_reads_it(tmp_path):
    weights = torch.randn(4, 6)
    state = {
        "model": OrderedDict(a=weights, view=weights.t()[1:3], tied=weights, parameter=torch.nn.Parameter(weights)),
        "kinds": [torch.arange(3).to(getattr(torch, kind)) for kind in ("bool", "uint8", "int8", "int16", "int32")],
        "more": (
            torch.ones(2).half(),
            torch.ones(2).bfloat16(),
            torch.ones(2).double(),
            torch.empty(0),
            torch.tensor(3),
        ),
        "plain": {
            "none": None,
            "yes": True,
            "no": False,
            "big": 1 << 70,
            "text": "é\n",
            3: -1.5,
            "shape": weights.shape,
        },
        "args": argparse.Namespace(lr=0.1),
    }
    torch.save(state, tmp_path / "a.pth")
    found = load_file(tmp_path / "a.pth", None)
    with torch.serialization.safe_globals([argparse.Namespace]):
        due = torch.load(tmp_path / "a.pth", weights_only=True)
    assert (found.pop("args"), due.pop("args")) == ({}, argparse.Namespace(lr=0.1))
    ours, theirs = tree_flatten(found)[0], tree_flatten(due)[0]
    assert len(ours) == len(theirs) > 20
    for own, other in zip(ours, theirs, strict=True):
        assert torch.equal(own, other) if isinstance(other, torch.Tensor) else own == other
        assert not isinstance(other, torch.Tensor) or (own.dtype, own.stride()) == (other.dtype, other.stride())
    assert found["model"]["a"].data_ptr() == found["model"]["tied"].data_ptr()


def test_a_flipped_bit_of_a_strangers_file_is_noticed(tmp_path):
    torch.save({"a": torch.zeros(1000)}, tmp_path / "a.pth")
    data = bytearray((tmp_path / "a.pth").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "a.pth").write_bytes(data)
    with pytest.raises(FormatError, match="damaged"):
        load_file(tmp_path / "a.pth", None)


def test_a_list_of_parts_is_found_with_every_codec(tmp_path):
    (tmp_path / "checkpoint-000000400-0b7712ad5c3390fe.json").write_text("{}")
    for codec in (NUMPY, TORCH):
        (found,) = CheckpointFolder(str(tmp_path), codec=codec).list()
        assert (found.step, found.is_list) == (400, True)


COMPLETE = {"version": STATE_VERSION, "step": 1, "arrays": {}, "loader": {}, "description": {}}


def test_a_state_with_all_entries_is_taken():
    check_state("x", COMPLETE, ["arrays"])


@pytest.mark.parametrize("name", ["step", "arrays", "loader", "description"])
def test_the_first_entry_that_is_missing_is_named(name):
    state = {key: value for key, value in COMPLETE.items() if key != name}
    with pytest.raises(FormatError, match=f"x: no entry '{name}'; expected a checkpoint as a run saves it"):
        check_state("x", state, ["arrays"])


def test_another_version_is_refused():
    with pytest.raises(UsageError, match="x: version 7, this program reads 1"):
        check_state("x", {**COMPLETE, "version": 7}, [])


@pytest.mark.parametrize("kind", [AttributeError, KeyError, RuntimeError, TypeError, ValueError])
def test_an_error_in_a_position_names_the_checkpoint(kind):
    with pytest.raises(FormatError, match=r"x: cannot restore .* or the random state \('?a'?\); .*: choose another"):
        with taking_position("x"):
            raise kind("a")
