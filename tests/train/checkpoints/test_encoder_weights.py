"""Weights of encoders: read from files of others, converted both ways, told what they are."""

import argparse
import hashlib

import pytest
import torch

from dataprep.errors import FormatError, UsageError
from train.checkpoints.encoder_weights import (
    named_encoder,
    read_weights,
    source_digest,
    weights_of,
    with_key_bias,
    without_key_bias,
)
from train.models.registry import create_model


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    """Weights of a small masked autoencoder."""
    torch.manual_seed(0)
    return create_model("mae_vit_micro_patch8", image_size=32).state_dict()


def test_a_checkpoint_of_maes_own_code_is_read(tensors, tmp_path):
    state = {"model": tensors, "epoch": 3, "args": argparse.Namespace(model="mae", lr=None)}
    torch.save(state, tmp_path / "theirs.pth")
    assert read_weights(str(tmp_path / "theirs.pth")).encoder.name == "vit_micro_patch8"


def test_weights_name_their_encoder_and_leave_the_decoder_out(tensors):
    weights = weights_of("x", {"model": tensors, "step": 7})
    assert (weights.name, weights.image_size, weights.step) == ("vit_micro_patch8", 32, 7)
    assert weights.encoder == named_encoder("vit_micro_patch8")
    assert not any(name.startswith(("decoder_", "mask_token")) for name in weights.tensors)


@pytest.mark.parametrize(("said", "heads"), [(4, 4), (None, 2), (3, 2), ("4", 2), (0, 2)])
def test_the_number_of_heads_is_that_of_the_run_and_else_that_of_the_named_size(tensors, said, heads):
    weights = weights_of("x", {"model": tensors, "description": {"num_heads": said}})
    assert (weights.num_heads, weights.encoder.block.num_heads) == (heads, heads)


def test_biases_of_queries_and_values_are_the_same_after_both_conversions(tensors):
    biased = {name: torch.randn_like(each) if "qkv.bias" in name else each for name, each in tensors.items()}
    without = without_key_bias(biased)
    again = with_key_bias(without)
    assert again.keys() == biased.keys()
    for name, bias in biased.items():
        if name.endswith("attn.qkv.bias"):
            query, key, value = again[name].chunk(3)
            assert torch.equal(query, bias.chunk(3)[0])
            assert torch.equal(value, bias.chunk(3)[2])
            assert not key.any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pos_embed": torch.zeros(1, 4, 64)}, "pos_embed of 4 tokens, expected a square of patches"),
        ({"patch_embed.proj.weight": torch.zeros(63, 3, 8, 8)}, "2 blocks of width 63 are not a known encoder"),
    ],
)
def test_tensors_of_another_shape_are_refused(tensors, changes, message):
    weights = weights_of("x", {**tensors, **changes})
    with pytest.raises(FormatError, match=message):
        _ = (weights.image_size, weights.encoder)


def test_an_unknown_size_is_refused_with_the_known_ones():
    for name in ("vit_giant_patch16", "resnet50", "vit_base_patch"):
        with pytest.raises(UsageError, match=r"expected vit_SIZE_patchN of micro \(2 x 64\), tiny"):
            named_encoder(name)


def test_the_digest_of_a_source_comes_from_its_name_or_its_bytes(tmp_path):
    path = tmp_path / "a.pth"
    path.write_bytes(b"hello")
    assert source_digest(str(path)) == "2cf24dba5fb0a30e"
    assert source_digest("gs://none/checkpoint-000000001-0123456789abcdef.pth") == "0123456789abcdef"


def test_the_digest_of_an_orbax_folder_is_that_of_its_files_and_their_names(tmp_path):
    def digest(name: str, files: dict[str, bytes]) -> str:
        for inner, data in files.items():
            path = tmp_path / name / inner
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return source_digest(str(tmp_path / name))

    files = {"arrays/d/b": b"hello", "arrays/_METADATA": b"x", "document/a": b""}
    found = digest("a.orbax", files)
    lines = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    assert found == hashlib.sha256(lines.encode()).hexdigest()[:16]
    assert digest("b.orbax", dict(reversed(files.items()))) == found
    assert digest("c.orbax", {**files, "arrays/d/b": b"hellO"}) != found
    assert digest("d.orbax", {"arrays/e/b": b"hello", "arrays/_METADATA": b"x", "document/a": b""}) != found
