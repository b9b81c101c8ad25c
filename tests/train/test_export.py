"""Exported weights: timm takes them and computes the same; key biases come and go; nothing is half there."""

import json
import re
import subprocess
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from dataprep.errors import ConflictError, FormatError, UsageError
from tests.support.markdown import ROOT
from tests.support.on_use import on_use
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.checkpoints.checkpoint import CheckpointFolder
from train.checkpoints.encoder_weights import ClassifierConfig, open_classifier, read_weights
from train.export import command, export
from train.models.registry import create_model

timm = on_use("timm")
VisionTransformer = on_use("timm.models.vision_transformer:VisionTransformer")
PEERS = ROOT / ".bench-venv/bin/python"
"""Interpreter of the peers' environment, which has transformers."""
MICRO = {"patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2}


def noisy(model: torch.nn.Module) -> torch.nn.Module:
    """No zeros that would hide a bias."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    return model.eval()


@pytest.fixture
def mae(tmp_path) -> tuple[torch.nn.Module, str]:
    """A masked autoencoder and its checkpoint."""
    torch.manual_seed(0)
    model = noisy(create_model("mae_vit_micro_patch8", image_size=32))
    saved = CheckpointFolder(str(tmp_path / "run")).save(40, {"step": 40, "model": model.state_dict()})
    return model, str(tmp_path / "run" / saved.name)


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_timm_takes_the_encoder_and_computes_the_same(mae, tmp_path, suffix):
    model, checkpoint = mae
    output = tmp_path / f"encoder.{suffix}"
    done = export(checkpoint, str(output))
    assert (done.model, done.image_size, done.step, done.num_classes) == ("vit_micro_patch8", 32, 40, 0)
    assert done.source_digest in checkpoint
    tensors = load_file(output) if suffix == "safetensors" else torch.load(output, weights_only=True)["model"]
    theirs = VisionTransformer(img_size=32, num_classes=0, global_pool="token", **MICRO).eval()
    theirs.load_state_dict(tensors, strict=True)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        every = torch.arange(16).expand(3, -1)
        assert (theirs.forward_features(images) - model.encode(images, every)).abs().max() < 2e-5


def snippets(number: int, **words: str) -> dict[str, Any]:
    """Run one of the snippets of docs/checkpoints.md on another file; return the names that it leaves behind."""
    section = (ROOT / "docs/checkpoints.md").read_text().partition("## Files for timm and Hugging Face")[2]
    text = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[number]
    for old, new in words.items():
        assert old in text
        text = text.replace(old, new)
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102  the document's snippet
    return names


@pytest.mark.parametrize("pool", [None, "token", "average"])
def test_the_documents_snippet_loads_a_file_into_timms_network_and_gives_it_a_batch(mae, tmp_path, pool):
    model, source = mae
    if pool is not None:
        config = ClassifierConfig(image_size=32, num_classes=5, pool=pool)
        model = noisy(open_classifier(None, read_weights(source), config))
        source = str(tmp_path / "tuned.pth")
        torch.save({"model": model.state_dict()}, source)
    export(source, str(tmp_path / "vit_base.safetensors"))
    found = snippets(0, **{"vit_base.safetensors": f"{tmp_path}/vit_base.safetensors"})
    with torch.no_grad():
        every = torch.arange(16).expand(2, -1)
        images = (found["images"] - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / torch.tensor(IMAGENET_STD).view(
            3, 1, 1
        )
        ours = model.encode(images, every)[:, 0] if pool is None else model(images)
    assert (ours - found["outputs"]).abs().max() < 1e-4


def test_the_documents_snippet_reads_the_names_of_the_classes(mae, tmp_path):
    export(tuned(mae, tmp_path, ["cat", "dog", "süß 1"]), str(tmp_path / "vit_base.safetensors"))
    found = snippets(0, **{"vit_base.safetensors": f"{tmp_path}/vit_base.safetensors"})
    assert found["facts"]["classes"] == ["cat", "dog", "süß 1"]


def test_the_documents_snippet_loads_a_file_into_hugging_faces_network(mae, tmp_path):
    export(mae[1], str(tmp_path / "vitmae.safetensors"), names="vitmae")
    section = (ROOT / "docs/checkpoints.md").read_text().partition("## Files for timm and Hugging Face")[2]
    text = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[1]
    whole = text.replace("vitmae.safetensors", f"{tmp_path}/vitmae.safetensors") + "\nprint(outputs.shape)\n"
    ended = subprocess.run([str(PEERS), "-c", whole], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout == "torch.Size([2, 17, 64])\n"  # the class token and all patches: none is masked


def tuned(mae: tuple[torch.nn.Module, str], folder: Any, classes: object) -> str:
    """A fine-tuned classifier's checkpoint, as a run saves it."""
    config = ClassifierConfig(image_size=32, num_classes=3, pool="average")
    model = noisy(open_classifier(None, read_weights(mae[1]), config))
    torch.save({"step": 7, "model": model.state_dict(), "classes": classes}, folder / "tuned.pth")
    return str(folder / "tuned.pth")


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_the_names_of_the_classes_are_in_the_file(mae, tmp_path, suffix):
    classes = ["cat", "dog", "süß 1"]
    export(tuned(mae, tmp_path, classes), f"{tmp_path}/a.{suffix}")
    assert list(export(f"{tmp_path}/a.{suffix}", f"{tmp_path}/b.{suffix}").classes or ()) == classes


@pytest.mark.parametrize("classes", [[], None, ["a", "b", "c", "d"], ["a", 1, "c"], ["a", "a", "b"], "abc"])
def test_names_that_are_not_those_of_the_logits_are_left_out(mae, tmp_path, classes):
    source = tuned(mae, tmp_path, classes)
    assert export(source, str(tmp_path / "a.safetensors")).classes is None
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert "classes" not in json.loads(file.metadata()["dataprep"])


def test_the_statistics_of_the_pixels_are_in_the_file_and_in_json(mae, tmp_path):
    for suffix in ("safetensors", "pth"):
        first = export(mae[1], str(tmp_path / f"a.{suffix}"))
        assert (first.pixel_mean, first.pixel_std) == (IMAGENET_MEAN, IMAGENET_STD)
        again = export(str(tmp_path / f"a.{suffix}"), str(tmp_path / f"b.{suffix}"))
        assert (again.pixel_mean, again.pixel_std) == (IMAGENET_MEAN, IMAGENET_STD)
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        facts = json.loads(file.metadata()["dataprep"])
    assert (facts["pixel_mean"], facts["pixel_std"]) == (list(IMAGENET_MEAN), list(IMAGENET_STD))


def test_statistics_that_a_file_of_timms_does_not_say_are_not_guessed(tmp_path):
    theirs = noisy(VisionTransformer(img_size=32, num_classes=0, global_pool="token", **MICRO))
    torch.save(theirs.state_dict(), tmp_path / "timm.pth")
    assert export(str(tmp_path / "timm.pth"), str(tmp_path / "out.safetensors")).pixel_mean is None


def test_repeating_an_export_changes_nothing_and_another_one_is_refused(mae, tmp_path):
    _, checkpoint = mae
    for suffix in ("safetensors", "pth"):
        output = tmp_path / f"encoder.{suffix}"
        export(checkpoint, str(output))
        before = output.read_bytes()
        export(checkpoint, str(output))
        assert output.read_bytes() == before
        with pytest.raises(ConflictError):
            export(checkpoint, str(output), key_bias="remove")
        assert output.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"run", "encoder.safetensors", "encoder.pth"}


def test_adding_or_removing_key_biases_does_not_change_the_result(mae, tmp_path):
    _, checkpoint = mae
    export(checkpoint, str(tmp_path / "without.safetensors"), key_bias="remove")
    without = load_file(tmp_path / "without.safetensors")
    assert "blocks.1.attn.q_bias" in without
    assert not any(name.endswith("qkv.bias") for name in without)
    export(str(tmp_path / "without.safetensors"), str(tmp_path / "with.pth"))
    added = torch.load(tmp_path / "with.pth", weights_only=True)["model"]
    assert not added["blocks.0.attn.qkv.bias"][64:128].any()

    images = torch.randn(3, 3, 32, 32)
    found, config = [], ClassifierConfig(image_size=32, num_classes=5, pool="token")
    for source in (checkpoint, tmp_path / "without.safetensors", tmp_path / "with.pth"):
        model = open_classifier(None, read_weights(str(source)), config).eval()
        torch.manual_seed(1)
        torch.nn.init.normal_(model.head.weight)
        with torch.no_grad():
            found.append(model(images))
    for other in found[1:]:
        assert (other - found[0]).abs().max() / found[0].abs().max() < 1e-4


def test_a_probe_becomes_one_linear_head_of_timms_model(mae, tmp_path):
    _, checkpoint = mae
    weights = read_weights(checkpoint)
    model = open_classifier(
        None, weights, ClassifierConfig(image_size=32, num_classes=5, pool="token", linear_probe=True)
    )
    with torch.no_grad():
        model.head[0].running_mean.normal_()
        model.head[0].running_var.uniform_(0.5, 2)
        model.head[1].bias.normal_()
    torch.save({"model": model.eval().state_dict()}, tmp_path / "probe.pth")
    done = export(str(tmp_path / "probe.pth"), str(tmp_path / "probe.safetensors"))
    assert done.num_classes == 5
    theirs = VisionTransformer(img_size=32, num_classes=5, global_pool="token", **MICRO).eval()
    theirs.load_state_dict(load_file(tmp_path / "probe.safetensors"), strict=True)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        assert (theirs(images) - model(images)).abs().max() < 1e-4


def test_an_export_reads_from_and_writes_to_a_bucket(mae, bucket_url, tmp_path):
    _, checkpoint = mae
    export(checkpoint, f"{bucket_url}/encoder.safetensors")
    export(f"{bucket_url}/encoder.safetensors", str(tmp_path / "again.safetensors"))
    first = read_weights(checkpoint).tensors
    assert all(torch.equal(each, first[name]) for name, each in load_file(tmp_path / "again.safetensors").items())


def test_the_command_prints_what_it_wrote(mae, tmp_path, capsys):
    output = tmp_path / "encoder.safetensors"
    assert command.main([mae[1], str(output), "--json"], standalone_mode=False) == 0
    found = json.loads(capsys.readouterr().out)
    with safe_open(output, "pt") as file:
        facts = json.loads(file.metadata()["dataprep"])
    assert facts.items() <= found.items()
    assert found["bytes"] == output.stat().st_size
    output.unlink()
    assert command.main([mae[1], str(output)], standalone_mode=False) == 0
    assert capsys.readouterr().err.startswith(
        f"{output}: vit_micro_patch8 at 32 pixels, 2 heads, {found['tensors']} tensors"
    )


def test_files_without_an_encoder_are_refused(mae, tmp_path):
    with pytest.raises(UsageError, match=r"ends with \.safetensors or \.pth"):
        export(mae[1], str(tmp_path / "encoder.onnx"))
    with pytest.raises(UsageError, match="not found"):
        export(str(tmp_path / "none.safetensors"), str(tmp_path / "a.pth"))
    torch.save({"a": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(FormatError, match="no vision transformer among 1 tensors"):
        export(str(tmp_path / "other.pth"), str(tmp_path / "a.pth"))
    torch.save({"step": 3}, tmp_path / "empty.pth")
    with pytest.raises(FormatError, match="no weights"):
        export(str(tmp_path / "empty.pth"), str(tmp_path / "a.pth"))
    (tmp_path / "damaged.safetensors").write_bytes(b"\x08" * 100)
    with pytest.raises(FormatError, match="damaged, or not a safetensors file"):
        export(str(tmp_path / "damaged.safetensors"), str(tmp_path / "a.pth"))
    assert not (tmp_path / "a.pth").exists()
