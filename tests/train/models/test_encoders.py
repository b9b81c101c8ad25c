"""Models of timm, open_clip and diffusers make for a column what the library makes of the same images."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import skimage.data
import timm
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import load_file, save_file

from dataprep.errors import SourceError, UsageError
from train.models.encoders import OpenClip, Timm, Vae

IMAGES = [skimage.data.cat()[90:160, 60 * n : 60 * n + 90 + 10 * n] for n in range(3)]
FLOAT16 = 2.0**-10
"""Relative error of a number that is rounded to float16, and of sums in another order."""


@pytest.fixture
def libraries(monkeypatch):
    """open_clip and diffusers, which `make setup` puts beside our packages."""
    own = [str(Path(".bench-venv", name).resolve()) for name in ("open_clip", "diffusers")]
    monkeypatch.setattr(sys, "path", [*sys.path, *own])
    if "torch_xla" not in sys.modules:  # which diffusers would import, and after TensorFlow that aborts the process
        monkeypatch.setitem(sys.modules, "torch_xla", None)


def made(kind, given, size=None):
    return kind(kind.find(str(given)), size)(SimpleNamespace(images=IMAGES))


def agree(found, expected):
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected.numpy(), rtol=FLOAT16, atol=FLOAT16)


def seeded(create):
    torch.manual_seed(0)
    return create().eval()


# timm


def timm_file(path, name="test_vit"):
    model = seeded(lambda: timm.create_model(name))
    save_file(model.state_dict(), path)
    return model


@torch.inference_mode()
def features(model, **size):
    model.reset_classifier(0)
    prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model, size))
    return model(torch.stack([prepare(Image.fromarray(image)) for image in IMAGES]))


@pytest.mark.parametrize(("name", "size"), [("test_vit", None), ("test_vit", 64), ("test_resnet", None)])
def test_a_file_of_weights_makes_the_features_of_timm(name, size, tmp_path):
    model = timm_file(tmp_path / "w.safetensors", name)
    if size:
        model.set_input_size(img_size=size)
    agree(made(Timm, f"{name}@{tmp_path}/w.safetensors", size), features(model, img_size=size))


def test_weights_without_a_classifier_are_complete_and_others_are_refused(tmp_path):
    model = timm_file(tmp_path / "all.safetensors")
    tensors = load_file(tmp_path / "all.safetensors")
    save_file({k: v for k, v in tensors.items() if not k.startswith("head.")}, tmp_path / "headless.safetensors")
    agree(made(Timm, f"test_vit@{tmp_path}/headless.safetensors"), features(model))
    del tensors["norm.weight"]
    save_file(tensors, tmp_path / "cut.safetensors")
    with pytest.raises(RuntimeError, match=r"Missing key.*norm\.weight"):
        made(Timm, f"test_vit@{tmp_path}/cut.safetensors")


def test_a_repository_of_the_hub_is_a_folder_and_its_configuration_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository, commit = tmp_path / "models--timm--test_vit.r160_in1k", "0" * 40
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    model = timm_file(folder / "model.safetensors")
    model.pretrained_cfg |= {"mean": [0.1, 0.2, 0.3], "crop_pct": 1.0}
    facts = {"architecture": "test_vit", "num_classes": 1000, "pretrained_cfg": model.pretrained_cfg}
    (folder / "config.json").write_text(json.dumps(facts))
    expected = features(model)
    for given in ("test_vit", "hf-hub:timm/test_vit.r160_in1k", folder):
        agree(made(Timm, given), expected)
    assert Timm.find(str(folder)).name == commit
    before = Timm.find("test_vit").version
    (folder / "config.json").write_text(json.dumps(facts, indent=1))
    assert Timm.find("test_vit").version != before
    with pytest.raises(SourceError, match="finding 'hf-hub:timm/none'"):
        Timm.find("hf-hub:timm/none")


@pytest.mark.parametrize("given", ["test_vit@w.bin", "folder", "test_vit@none.safetensors", "tset_vit"])
def test_pickles_and_what_does_not_exist_are_refused(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({}, "w.bin")
    Path("folder").mkdir()
    Path("folder/config.json").write_text("{}")
    torch.save({}, "folder/pytorch_model.bin")
    with pytest.raises(UsageError, match=r"\.safetensors"):
        Timm.find(given)


def test_values_out_of_the_range_of_float16_are_an_error(tmp_path):
    model = timm_file(tmp_path / "w.safetensors")
    save_file(model.state_dict() | {"norm.weight": model.norm.weight * 1e9}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="out of the range of float16"):
        made(Timm, f"test_vit@{tmp_path}/w.safetensors")


# open_clip and diffusers


def test_a_clip_model_makes_embeddings_of_length_one(libraries, tmp_path):
    import open_clip

    facts = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
        "text_cfg": {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1},
    }
    prepared = {"mean": [0.5, 0.4, 0.3], "std": [0.3, 0.3, 0.3], "interpolation": "bilinear", "resize_mode": "squash"}
    (tmp_path / "tiny-clip.json").write_text(json.dumps(facts))
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": facts, "preprocess_cfg": prepared}))
    open_clip.add_model_config(tmp_path / "tiny-clip.json")
    file = tmp_path / "open_clip_model.safetensors"
    save_file(seeded(lambda: open_clip.create_model("tiny-clip")).state_dict(), file)
    for given, name, weights in (
        (tmp_path, f"local-dir:{tmp_path}", None),
        (f"tiny-clip@{file}", "tiny-clip", str(file)),
    ):
        model, prepare = open_clip.create_model_from_pretrained(name, weights)
        with torch.inference_mode():
            expected = model.encode_image(torch.stack([prepare(Image.fromarray(image)) for image in IMAGES]))
        agree(made(OpenClip, given), expected / expected.norm(dim=1, keepdim=True))
    with pytest.raises(UsageError, match="'tiny-clip@none': no folder, and no name with weights on the Hub"):
        OpenClip.find("tiny-clip@none")


def test_a_vae_makes_the_scaled_mean_of_its_latents(libraries, tmp_path):
    from diffusers import AutoencoderKL

    model = seeded(
        lambda: AutoencoderKL(
            block_out_channels=(8, 8), down_block_types=["DownEncoderBlock2D"] * 2, norm_num_groups=4, sample_size=48,
            up_block_types=["UpDecoderBlock2D"] * 2, scaling_factor=0.3, shift_factor=0.1,
        )
    )  # fmt: skip
    model.save_pretrained(tmp_path)
    boxes = [(each.shape[1] / 2 - 35, 0, each.shape[1] / 2 + 35, 70) for each in IMAGES]
    scaled = [
        Image.fromarray(each).resize((48, 48), Image.Resampling.BICUBIC, box)
        for each, box in zip(IMAGES, boxes, strict=True)
    ]
    pixels = np.stack([np.asarray(image) for image in scaled])
    with torch.inference_mode():
        mean = model.encode(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1).latent_dist.mean
    agree(made(Vae, tmp_path), (mean - 0.1) * 0.3)
    assert made(Vae, tmp_path, 32).shape == (3, 4, 16, 16)
    tensors = load_file(tmp_path / "diffusion_pytorch_model.safetensors")
    del tensors["encoder.conv_in.bias"]
    save_file(tensors, tmp_path / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 weights, such as encoder.conv_in.bias"):
        made(Vae, tmp_path)


def test_a_library_that_is_missing_is_named_with_its_command():
    with pytest.raises(UsageError, match="needs the package diffusers; install it"):
        Vae.find("folder")
