"""Exported weights: timm takes them and computes the same; key biases come and go; nothing is half there."""

import json
import subprocess

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from dataprep.errors import ConflictError, FormatError, UsageError
from tests.support.markdown import ROOT
from tests.support.on_use import on_use
from train.checkpoints.checkpoint import CheckpointFolder
from train.checkpoints.encoder_weights import read_weights
from train.checkpoints.pretrained import ClassifierConfig, open_classifier
from train.export import command, export
from train.models.registry import create_model
from train.models.sizes import BlockConfig, ViTConfig
from train.models.vit import VisionTransformer as OurViT

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


def printed_call(capsys, *arguments: object) -> str:
    """The call that the command prints, which is that of --json, too."""
    assert command.main([str(each) for each in arguments], standalone_mode=False) == 0
    found = capsys.readouterr().out.splitlines()[-1].removeprefix("for: ")
    assert command.main([*map(str, arguments), "--json"], standalone_mode=False) == 0
    assert found.startswith(json.loads(capsys.readouterr().out)["network"])
    return found


@pytest.mark.parametrize("pool", [None, "token", "average"])
def test_the_printed_call_makes_timms_network_for_the_file(mae, tmp_path, capsys, pool):
    model, source = mae
    if pool is not None:
        config = ClassifierConfig(image_size=32, num_classes=5, pool=pool)
        model = noisy(open_classifier(None, read_weights(source), config))
        source = str(tmp_path / "tuned.pth")
        torch.save({"model": model.state_dict()}, source)
    call = printed_call(capsys, source, tmp_path / "out.safetensors")
    theirs = eval(call, {"timm": timm}).eval()  # noqa: S307  the printed line
    theirs.load_state_dict(load_file(tmp_path / "out.safetensors"), strict=True)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        if pool is None:
            ours, found = model.encode(images, torch.arange(16).expand(3, -1)), theirs.forward_features(images)
        else:
            ours, found = model(images), theirs(images)
    assert (ours - found).abs().max() < 1e-4


def test_the_printed_call_makes_timms_network_for_a_vit_without_a_class_token(tmp_path, capsys):
    block = BlockConfig(dim=32, num_heads=2)
    model = noisy(
        OurViT(
            ViTConfig(
                image_size=16, patch_size=8, depth=2, block=block, num_classes=3, pool="average_of_normed",
                class_token=False,
            )
        )
    )  # fmt: skip
    torch.save({"model": model.state_dict()}, tmp_path / "vit.pth")
    call = printed_call(capsys, tmp_path / "vit.pth", tmp_path / "out.safetensors")
    theirs = eval(call.replace("HEADS", "2"), {"timm": timm}).eval()  # noqa: S307  the printed line
    assert "num_heads=HEADS" in call
    theirs.load_state_dict(load_file(tmp_path / "out.safetensors"), strict=True)
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        assert (theirs(images) - model(images)).abs().max() < 1e-4


def test_no_call_is_printed_where_timm_has_no_such_network(mae, tmp_path, capsys):
    command.main([mae[1], str(tmp_path / "a.pth"), "--key_bias", "remove"], standalone_mode=False)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_printed_call_makes_hugging_faces_network_for_the_file(mae, tmp_path, capsys):
    weights = tmp_path / "vitmae.safetensors"
    call = printed_call(capsys, mae[1], weights, "--names", "vitmae")
    call, stripped = call.split(" with ")
    assert stripped == '"vit." taken off the names'
    program = (
        "import transformers, safetensors.torch\n"
        f"tensors = safetensors.torch.load_file({str(weights)!r})\n"
        "names = {name.removeprefix('vit.'): each for name, each in tensors.items()}\n"
        f"print({call}.load_state_dict(names, strict=True))\n"
    )
    run = subprocess.run([str(PEERS), "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert "All keys matched" in run.stdout


def test_timm_loads_an_export_into_its_named_model(tmp_path):
    with torch.device("meta"):
        ours = create_model("mae_vit_tiny_patch16", image_size=224)
    torch.save(
        {"model": {name: torch.zeros(each.shape) for name, each in ours.state_dict().items()}}, tmp_path / "a.pth"
    )
    done = export(str(tmp_path / "a.pth"), str(tmp_path / "b.safetensors"))
    assert done.model == "vit_tiny_patch16"
    timm.create_model("vit_tiny_patch16_224", num_classes=0, checkpoint_path=str(tmp_path / "b.safetensors"))


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


def test_timm_takes_a_fine_tuned_model_and_computes_the_same(mae, tmp_path):
    model = noisy(
        open_classifier(None, read_weights(mae[1]), ClassifierConfig(image_size=32, num_classes=5, pool="average"))
    )
    torch.save({"model": model.state_dict()}, tmp_path / "tuned.pth")
    export(str(tmp_path / "tuned.pth"), str(tmp_path / "tuned.safetensors"))
    theirs = VisionTransformer(img_size=32, num_classes=5, global_pool="avg", **MICRO).eval()
    theirs.load_state_dict(load_file(tmp_path / "tuned.safetensors"), strict=True)
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
    assert command.main([mae[1], str(output)], standalone_mode=False) == 0
    assert capsys.readouterr().out.startswith(f"{output}: vit_micro_patch8 at 32 pixels, {found['tensors']} tensors")


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
    with pytest.raises(UsageError, match="--model vit_base_patch16, but"):
        open_classifier(
            "vit_base_patch16", read_weights(mae[1]), ClassifierConfig(image_size=32, num_classes=5, pool="token")
        )
    assert not (tmp_path / "a.pth").exists()
