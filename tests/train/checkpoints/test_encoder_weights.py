"""Weights of encoders: read from files of others, converted both ways, told what they are."""

import argparse
import hashlib

import pytest
import torch

from dataprep.errors import FormatError, UsageError
from train.checkpoints.encoder_weights import (
    ClassifierConfig,
    Weights,
    folded_head,
    load_whole,
    named_encoder,
    open_classifier,
    read_weights,
    resized_positions,
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


@pytest.fixture
def weights() -> Weights:
    """Weights of a small masked autoencoder."""
    torch.manual_seed(0)
    return weights_of("x", create_model("mae_vit_micro_patch8", image_size=32).state_dict())


def config(**changes) -> ClassifierConfig:
    return ClassifierConfig(**{"image_size": 32, "num_classes": 5, "pool": "token", **changes})


def test_positions_are_resized_to_the_image(weights):
    model = open_classifier(None, weights, config(image_size=64, pool="average"))
    assert model.pos_embed.shape == (1, 65, 64)
    assert torch.equal(model.pos_embed[:, 0], weights.positions[:, 0])
    square = weights.positions[:, 1:].reshape(1, 4, 4, 64).permute(0, 3, 1, 2)
    expected = torch.nn.functional.interpolate(square, size=(8, 8), mode="bicubic", align_corners=False)
    assert torch.equal(model.pos_embed[0, 1:].T.reshape(1, 64, 8, 8), expected)
    assert resized_positions(weights.positions, 4) is weights.positions


def test_a_probe_trains_its_head_alone_on_features_that_it_normalises(weights):
    model = open_classifier(None, weights, config(linear_probe=True))
    assert [name for name, each in model.named_parameters() if each.requires_grad] == ["head.1.weight", "head.1.bias"]
    assert torch.equal(model.state_dict()["blocks.1.mlp.fc1.weight"], weights.tensors["blocks.1.mlp.fc1.weight"])


def test_a_folded_head_computes_what_normalisation_and_layer_do(weights):
    model = open_classifier(None, weights, config(linear_probe=True)).eval()
    with torch.no_grad():
        model.head[0].running_mean.normal_()
        model.head[0].running_var.uniform_(0.5, 2)
    folded = folded_head(model.state_dict())
    features = torch.randn(7, 64)
    expected = model.head(features)
    found = torch.nn.functional.linear(features, folded["head.weight"], folded["head.bias"])
    assert torch.allclose(found, expected, atol=1e-5)
    assert folded_head(folded) is folded


def test_weights_of_another_network_are_refused(weights):
    with pytest.raises(UsageError, match="`model` vit_base_patch16, but x is of vit_micro_patch8; leave `model` out"):
        open_classifier("vit_base_patch16", weights, config())
    fewer = {name: each for name, each in weights.tensors.items() if name != "blocks.0.norm1.bias"}
    with pytest.raises(UsageError, match=r"1 tensors are only in one of the two, the first is blocks.0.norm1.bias"):
        open_classifier(None, Weights("x", fewer, None), config())
    with pytest.raises(UsageError, match="from another model"):
        load_whole(
            open_classifier(None, None, config()) if False else open_classifier(None, weights, config()), weights
        )
