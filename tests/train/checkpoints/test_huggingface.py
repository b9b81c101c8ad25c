"""Hugging Face's ViTMAE: its names become ours and back, and with its weights we compute what it computes."""

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
from train.checkpoints.encoder_weights import from_vitmae, is_vitmae, read_weights, to_vitmae
from train.export import export
from train.models.mae import MaskedAutoencoder
from train.models.sizes import BlockConfig, MAEConfig

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
