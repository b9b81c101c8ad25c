"""Weights of encoders: read from files of others, converted both ways, told what they are."""

import argparse
import hashlib
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dataprep.errors import FormatError, UsageError
from tests.support.markdown import ROOT
from tests.support.vitmae_reference import SHOWN, SIZES, inputs, is_fixed, places, weight
from train.checkpoints.encoder_weights import (
    ClassifierConfig,
    Weights,
    folded_head,
    from_vitmae,
    is_vitmae,
    load_whole,
    named_encoder,
    open_classifier,
    read_weights,
    resized_positions,
    source_digest,
    to_vitmae,
    weights_of,
    with_key_bias,
    without_key_bias,
)
from train.export import export
from train.models.mae import MaskedAutoencoder
from train.models.registry import create_model
from train.models.sizes import BlockConfig, MAEConfig


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
def weights(tensors) -> Weights:
    return weights_of("x", tensors)


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
        load_whole(open_classifier(None, weights, config()), weights)


STORED = Path(__file__).with_name("vitmae.json")
PYTHON = ROOT / ".bench-venv/bin/python"
"""Interpreter of the peers' environment, which has transformers."""


def network(size: dict) -> MaskedAutoencoder:
    """Our network of a size, with the weights that ViTMAE has in the reference."""
    model = MaskedAutoencoder(
        MAEConfig(
            image_size=size["image_size"],
            patch_size=size["patch_size"],
            encoder=BlockConfig(dim=size["dim"], num_heads=size["heads"]),
            encoder_depth=size["depth"],
            decoder=BlockConfig(dim=size["decoder_dim"], num_heads=size["decoder_heads"]),
            decoder_depth=size["decoder_depth"],
            norm_pix_loss=True,
        )
    )
    theirs = to_vitmae(model.state_dict())
    drawn = {name: torch.from_numpy(weight(name, tuple(each.shape))) for name, each in theirs.items()}
    model.load_state_dict(from_vitmae("x", theirs | {name: drawn[name] for name in drawn if not is_fixed(name)}))
    return model.eval()


def outputs(model: MaskedAutoencoder, size: dict) -> dict:
    images, noise = inputs(size)
    visible, place = (torch.from_numpy(each) for each in places(noise))
    with torch.no_grad():
        found = model(torch.from_numpy(images), visible, place)
        encoded = model.encode(torch.from_numpy(images), visible)
    return {"loss": float(found.loss), "encoded": encoded.numpy(), "prediction": found.prediction.numpy()}


@pytest.fixture(scope="module")
def tiny() -> MaskedAutoencoder:
    return network(SIZES["tiny"])


def test_outputs_and_names_are_those_of_vitmae(tiny):
    stored = json.loads(STORED.read_text())
    assert sorted(to_vitmae(tiny.state_dict())) == stored["names"]
    found = outputs(tiny, SIZES["tiny"])
    assert found["loss"] == pytest.approx(stored["loss"], abs=2e-6)
    for name in ("encoded", "prediction"):
        assert found[name].ravel()[::SHOWN] == pytest.approx(np.asarray(stored[name]), abs=2e-6)


def test_weights_that_went_there_and_back_are_the_same(tiny):
    ours = tiny.state_dict()
    back = from_vitmae("x", to_vitmae(ours))
    assert back.keys() == ours.keys()
    assert all(torch.equal(back[name], ours[name]) for name in ours)
    assert not is_vitmae(ours)


def test_weights_of_other_networks_are_refused(tiny):
    theirs = to_vitmae(tiny.state_dict())
    with pytest.raises(FormatError, match=r"x: pooler.dense.weight is not a weight of Hugging Face's ViTMAE"):
        from_vitmae("x", theirs | {"vit.pooler.dense.weight": torch.zeros(1)})
    with pytest.raises(FormatError, match=r"x: encoder.layer.0.added.weight is not a weight"):
        from_vitmae("x", theirs | {"vit.encoder.layer.0.added.weight": torch.zeros(1)})
    key = "vit.encoder.layer.1.attention.attention.key.bias"
    with pytest.raises(FormatError, match=r"x: encoder.layer.1.attention.attention.key.bias is missing next to"):
        from_vitmae("x", {name: each for name, each in theirs.items() if name != key})
    with pytest.raises(FormatError, match=r"^head\.weight: ViTMAE has no such weight"):
        to_vitmae({"head.weight": torch.zeros(1)})


def test_files_of_vitmae_are_read_and_written(tiny, tmp_path):
    save_file(to_vitmae(tiny.state_dict()), tmp_path / "model.safetensors")
    found = read_weights(str(tmp_path / "model.safetensors")).tensors
    encoder = {name: each for name, each in tiny.state_dict().items() if not name.startswith(("decoder", "mask"))}
    assert found.keys() == encoder.keys()
    assert all(torch.equal(found[name], encoder[name]) for name in encoder)
    with pytest.raises(UsageError, match="`names` vitmae, `key_bias` remove: ViTMAE needs key biases"):
        export(str(tmp_path / "model.safetensors"), str(tmp_path / "a.pth"), key_bias="remove", names="vitmae")


@pytest.mark.long
def test_transformers_computes_what_is_stored_and_takes_what_we_export(tiny, tmp_path):
    script = [str(PYTHON), "tests/support/vitmae_reference.py"]
    run = subprocess.run([*script, "tiny"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found, stored = json.loads(run.stdout), json.loads(STORED.read_text())
    assert found["names"] == stored["names"]
    assert found["loss"] == pytest.approx(stored["loss"], abs=2e-6)
    assert found["prediction"] == pytest.approx(stored["prediction"], abs=2e-6)
    weights, out = tmp_path / "encoder.safetensors", tmp_path / "outputs.npz"
    torch.save({"model": tiny.state_dict()}, tmp_path / "mae.pth")
    export(str(tmp_path / "mae.pth"), str(weights), names="vitmae")
    subprocess.run([*script, "encoder", str(weights), str(out)], cwd=ROOT, check=True)
    theirs = np.load(out)["encoded"]
    assert np.abs(theirs - outputs(tiny, SIZES["tiny"])["encoded"]).max() < 2e-6
