"""Flags that entries share: devices, folders, batches, rates."""

import re

import pytest

from dataprep.errors import UsageError
from loaders import Packs
from train.finetune_mae import recipe_flags
from train.flags.shared import PackOptions, check_packs, check_shares
from train.loops.runtime import open_runtime
from train.pretrain_mae import PretrainMAE
from train.train_resnet import TrainResNet
from train.train_vit import TrainViT


def test_a_start_epoch_after_the_last_epoch_is_refused():
    with pytest.raises(UsageError, match="`start_epoch` 3 of 3 epochs; choose 2 or less"):
        PretrainMAE(data_path="x", epochs=3, start_epoch=3)


def test_both_batch_sizes_make_one_effective_batch():
    runtime = open_runtime("cpu")
    both = {"data_path": "x", "accum_iter": 2}
    assert PretrainMAE(**both, batch_size=64).effective_batch(runtime) == 128
    assert PretrainMAE(**both, batch_size=-1, effective_batch_size=4096).effective_batch(runtime) == 4096
    assert PretrainMAE(**both, batch_size=2048, effective_batch_size=4096).effective_batch(runtime) == 4096


def test_logs_are_written_next_to_checkpoints_unless_they_have_a_folder():
    folders = [({}, "./output_dir"), ({"output_dir": "gs://b/x"}, "gs://b/x"), ({"output_dir": ""}, None)]
    folders += [({"output_dir": "gs://b/x", "log_dir": "logs"}, "logs"), ({"log_dir": ""}, None)]
    for given, expected in folders:
        assert PretrainMAE(data_path="x", **given).log_folder == expected, given


def test_the_device_is_xla_where_the_environment_says_so(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("train.flags.shared._TPU_FILES", ())
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    assert PretrainMAE(data_path="x").device_name == "cpu"
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    assert PretrainMAE(data_path="x").device_name == "xla"
    assert PretrainMAE(data_path="x", device="cuda").device_name == "cuda"
    assert PretrainMAE(data_path="x", use_xla=True).device_name == "xla"


def test_threads_decode_unless_processes_do():
    runtime = open_runtime("cpu")
    config = PretrainMAE(data_path="x", num_workers=3, seed=5).loader_config(runtime, batch_size=8, image_size=32)
    assert (config.threads, config.seed, config.batch_size, config.image_size) == (3, 5, 8, 32)
    flags = recipe_flags(data_path="x", num_workers=3)
    assert flags.loader_config(runtime, batch_size=8, image_size=32).threads is None


def test_a_batch_that_devices_and_parts_cannot_share_is_refused():
    assert check_shares(8, open_runtime("cpu"), 4) == 8
    with pytest.raises(UsageError, match="`batch_size` 9 cannot be shared by 1 devices x 2 parts; choose a multiple"):
        check_shares(9, open_runtime("cpu"), 2)


@pytest.mark.parametrize("given", [{"diagnose": True}, {"metrics_port": 9464}])
def test_fake_data_are_neither_diagnosed_nor_served(given):
    TrainViT(**given)
    with pytest.raises(UsageError, match=f"^`{next(iter(given))}` .*; leave it out with `fake_data`"):
        TrainViT(fake_data=True, **given)


def test_metrics_are_served_where_the_flags_say():
    flags = PretrainMAE(data_path="x", metrics_port=9464, metrics_address="0.0.0.0")
    config = flags.loader_config(open_runtime("cpu"), batch_size=8, image_size=32)
    assert (config.metrics_port, config.metrics_address) == (9464, "0.0.0.0")
    for port in (0, 65536):
        with pytest.raises(UsageError, match=f"`metrics_port` must be 1 to 65,535, got {port}"):
            PretrainMAE(data_path="x", metrics_port=port)


def test_a_run_without_a_data_path_is_refused():
    with pytest.raises(UsageError, match="`data_path` is empty"):
        PretrainMAE(data_path="")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"batch_size": 4}, "and `batch_size` both say how many images an update has; give one of them"),
        ({"effective_batch_size": 4}, "and `effective_batch_size` both say how many images an update has"),
        ({"diagnose": True}, "`diagnose` measures batches of one size; give that size instead"),
        ({"accum_iter": 3}, "`batch_ramp` 4 cannot be shared by 1 devices x 3 parts; choose a multiple of 3"),
    ],
    ids=str,
)
def test_a_ramp_takes_the_place_of_a_batch_size(given, why):
    flags = PretrainMAE(data_path="x", batch_ramp="4:8@1epoch", **given)
    with pytest.raises(UsageError) as refused:
        flags.fitted_to(100, open_runtime("cpu"))
    assert why in str(refused.value)


def test_the_rate_in_a_ramp_is_the_recipes_for_each_batch_unless_it_is_given():
    ramp = {"data_path": "x", "batch_ramp": "512:2048@1epoch"}
    assert PretrainMAE(**ramp).lr_shares == {512: 0.25, 1024: 0.5, 2048: 1.0}
    assert TrainViT(**ramp).lr_shares == pytest.approx({512: 0.5**0.5, 1024: 1.0, 2048: 1.0})
    assert TrainResNet(**ramp).lr_shares == {512: 0.5, 1024: 1.0, 2048: 1.0}
    assert PretrainMAE(**ramp, lr=0.1).lr_shares == {}


def test_the_index_of_plain_data_is_kept_where_it_is_asked_for(photographs, tmp_path):
    data = PretrainMAE(data_path=photographs, index_dir=str(tmp_path / "index")).open_data()
    assert data.index_url == str(tmp_path / "index")


class Devices:
    """Eight of them."""

    num_devices = 8


def test_flags_become_what_the_loader_is_asked_for():
    assert PackOptions().packs(16, crop=(0.2, 1.0)) is None
    assert PackOptions(pack_tokens=512, pack_images=4).packs(16, crop=(1.0, 1.0)) == Packs(tokens=512, images=4)
    given = PackOptions(pack_tokens=512, pack_images=4, pack_min_tokens=50, pack_max_tokens=400)
    assert given.packs(14, crop=(0.2, 1.0)) == Packs(
        tokens=512, images=4, patch=14, min_tokens=50, max_tokens=400, crop=(0.2, 1.0)
    )


def test_rows_that_devices_and_parts_cannot_share_are_refused():
    packs = Packs(tokens=512, images=4)
    check_packs(packs, 64, Devices, 2)
    message = "`pack_images` 4: a batch of 96 in rows of 4 cannot be shared by 8 devices x 2 parts; "
    with pytest.raises(UsageError, match=re.escape(message + "choose a batch that is a multiple of 64")):
        check_packs(packs, 96, Devices, 2)


@pytest.mark.parametrize(
    ("kind", "flags", "name"),
    [
        (PretrainMAE, {"diagnose": True}, "diagnose"),
        (PretrainMAE, {"use_byol_crop": True}, "use_byol_crop"),
        (PretrainMAE, {"mask_downsampling": 2}, "mask_downsampling"),
        (TrainViT, {"fake_data": True}, "fake_data"),
    ],
)
def test_flags_of_squares_are_refused(kind, flags, name):
    with pytest.raises(UsageError, match=f"^`{name}` is for square images; leave it out with `pack_tokens`$"):
        kind(data_path="x", pack_tokens=512, **flags)
