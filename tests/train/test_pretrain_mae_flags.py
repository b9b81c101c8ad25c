"""Every flag does something: another loss, another learning rate, other weights, other files."""

import dataclasses
import json
import socket
import urllib.request
from contextlib import closing

import pytest
import torch

from tests.support.training import trace_of
from train.pretrain_mae import Flags, open_training

PACKS = {"pack_tokens": 40, "pack_images": 4}
MICRO = {"model": "mae_vit_micro_patch8", "input_size": 32, "batch_size": 4}
CHANGES = {
    "model": {"model": "mae_vit_tiny_patch16"},
    "input_size": {"input_size": 64},
    "patch_size": {"patch_size": 4},
    "decoder_embed_dim": {"decoder_embed_dim": 16},
    "decoder_depth": {"decoder_depth": 2},
    "no_k_bias_in_vit": {"no_k_bias_in_vit": True},
    "norm_pix_loss": {"norm_pix_loss": True},
    "mask_ratio": {"mask_ratio": 0.5},
    "mask_downsampling": {"mask_downsampling": 2},
    "decoder_downsampling": {"decoder_downsampling": 2},
    "pred_downsampling": {"decoder_downsampling": 2, "pred_downsampling": 2},
    "batch_size": {"effective_batch_size": -1, "batch_size": 4},
    "effective_batch_size": {"effective_batch_size": 4},
    "accum_iter": {"effective_batch_size": -1, "batch_size": 2, "accum_iter": 2},
    "epochs": {"epochs": 2, "warmup_epochs": 0},
    "start_epoch": {"start_epoch": 1},
    "max_steps": {"max_steps": 2},
    "lr": {"lr": 1e-3},
    "blr": {"blr": 0.01},
    "min_lr": {"min_lr": 1e-3, "warmup_epochs": 0},
    "warmup_epochs": {"warmup_epochs": 2},
    "weight_decay": {"weight_decay": 5.0},
    "min_crop": {"min_crop": 0.9},
    "max_crop": {"max_crop": 0.3},
    "use_byol_crop": {"use_byol_crop": True},
    "precision": {"precision": "bfloat16"},
    "seed": {"seed": 1},
    "ckpt_interval_steps": {"ckpt_interval_steps": 1},
    "ckpt_interval_minutes": {"ckpt_interval_minutes": 1e-9},
    "keep_checkpoints": {"ckpt_interval_steps": 1, "keep_checkpoints": 2},
    "log_interval_steps": {"log_interval_steps": 2},
    "profile_steps": {"profile_steps": "1:2"},
    "pack_tokens": {**PACKS, "pack_tokens": 48},
    "pack_images": {**PACKS, "pack_images": 2},
    "pack_min_tokens": {**PACKS, "pack_min_tokens": 7},
    "pack_max_tokens": {**PACKS, "pack_max_tokens": 11},
    "pack_positions": {**PACKS, "pack_positions": "absolute"},
}
AGAINST = {
    "epochs": {"warmup_epochs": 0},
    "min_lr": {"warmup_epochs": 0},
    "pred_downsampling": {"decoder_downsampling": 2},
    "keep_checkpoints": {"ckpt_interval_steps": 1},
    "accum_iter": {"effective_batch_size": -1, "batch_size": 2},
    **dict.fromkeys(("pack_tokens", "pack_images", "pack_min_tokens", "pack_max_tokens", "pack_positions"), PACKS),
}
"""What the change is compared with, where that is not a plain run."""
ELSEWHERE = {"data_path", "output_dir", "log_dir", "index_dir", "init", "resume", "num_workers", "ckpt_interval"} | {
    "on_error", "region_policy", "pin_mem", "device", "use_xla", "diagnose", "metrics_port", "metrics_address", "wandb",
    "framework", "compile", "tensor_parallel", "ema_decay", "no_scan", "orbax", "fsdp", "grad_ckpt",
}  # fmt: skip
"""Other tests show these."""


def traces(pretrain, folder, **flags) -> dict:
    """All that three steps leave behind."""
    pretrain(**{"output_dir": str(folder), "max_steps": 3, **flags})
    return trace_of(folder)


@pytest.fixture(scope="module")
def plain():
    """Traces of a plain run, made once."""
    return {}


@pytest.mark.parametrize("name", CHANGES)
def test_each_flag_changes_losses_weights_or_files(pretrain, plain, tmp_path, name):
    against = json.dumps(AGAINST.get(name, {}))
    if against not in plain:
        plain[against] = traces(pretrain, tmp_path / "plain", **json.loads(against))
    changed = traces(pretrain, tmp_path / "changed", **CHANGES[name])
    assert changed != plain[against]


def test_the_same_flags_change_nothing(pretrain, tmp_path):
    assert traces(pretrain, tmp_path / "a") == traces(pretrain, tmp_path / "b")


def test_every_flag_has_a_test():
    assert {each.name for each in dataclasses.fields(Flags)} == CHANGES.keys() | ELSEWHERE


def test_num_workers_sets_the_decoding_threads(dataset):
    flags = Flags(data_path=dataset, device="cpu", **MICRO, num_workers=3)
    assert open_training(flags).loader.config.num_threads == 3


def test_the_region_policy_reaches_the_loader(dataset):
    flags = Flags(data_path=dataset, device="cpu", region_policy="warn", **MICRO)
    assert open_training(flags).loader.config.region_policy == "warn"


def test_metrics_of_a_run_are_served(dataset):
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port = found.getsockname()[1]
    training = open_training(Flags(data_path=dataset, device="cpu", metrics_port=port, **MICRO))
    with training.loader, urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=100) as answer:
        assert 'dataprep_loader_batches_total{loader="0",rank="0",split="train"} 0.0' in answer.read().decode()


def test_checkpoints_are_saved_after_every_so_many_epochs(pretrain, tmp_path):
    pretrain(output_dir=str(tmp_path), ckpt_interval=2, epochs=4, keep_checkpoints=9)
    steps = sorted(int(path.name[11:20]) for path in tmp_path.glob("checkpoint-*.pth"))
    assert steps == [7, 22, 30]  # after epochs 0 and 2, and the last one


def test_a_checkpoint_given_by_its_path_is_resumed(pretrain, tmp_path, capsys):
    pretrain(output_dir=str(tmp_path / "first"), max_steps=2)
    (path,) = (tmp_path / "first").glob("checkpoint-*.pth")
    pretrain(output_dir=str(tmp_path / "second"), max_steps=3, resume=str(path), weight_decay=0.1)
    errors = capsys.readouterr().err
    assert f"resumed after step 2, from {path}" in errors
    assert "note: --weight-decay was 0.05, is now 0.1" in errors
    assert torch.load(path, weights_only=True)["step"] == 2
