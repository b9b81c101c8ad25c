"""The document of a diagnosis."""

import json
from dataclasses import asdict, replace

import click
import pytest

from dataprep.commands import diagnose as diagnose_command
from loaders.config import LoaderConfig
from loaders.diagnosis.diagnose import apply_best, diagnose
from loaders.diagnosis.findings import DIAGNOSE, to_document
from loaders.diagnosis.observed_run import RunSetup, parse_simulated
from train import finetune_mae, pretrain_mae, train_resnet, train_resnet_jax, train_vit

SECONDS = 0.6
SMALL = {"batch_size": 8, "image_size": 32, "threads": 2}


def run(url, device, *, transfer_ahead=2, **settings):
    config = LoaderConfig(**(SMALL | settings))
    setup = RunSetup(url=str(url), split="train", config=config, transfer_ahead=transfer_ahead)
    device = parse_simulated(device)
    return apply_best(setup, device, diagnose(setup, device, seconds=SECONDS), seconds=SECONDS)


def test_a_diagnosis_becomes_json_with_every_field(dataset):
    document = json.loads(json.dumps(to_document(run(dataset("imagefolder"), "simulated:200"))))

    assert document["schema_version"] == 1
    assert sum(document[f"{name}_share"] for name in ("wait", "transfer", "compute")) == pytest.approx(1)
    assert 0 < len(document["timeline"]) <= 200
    assert document["settings"]["batch_size"] == 8
    assert document["machine"]["cores"] >= 1


IMAGES = 128
"""Images of a batch, of two devices."""


def diagnosed(kind, **flags):
    """Options that a diagnosis of a run with these flags may name."""
    flags = kind(data_path="x", **flags)
    return flags.diagnosed_options(IMAGES, asdict(flags))


SETTINGS = {"threads", "processes", "decoder", "prefetch_batches", "reads_in_flight", "cache_dir", "batch_size"}
COMMANDS = {
    "diagnose": (diagnose_command.command, DIAGNOSE),
    "pretrain-mae": (pretrain_mae.command, diagnosed(pretrain_mae.PretrainMAE, batch_size=64)),
    "finetune-mae": (finetune_mae.command, diagnosed(finetune_mae.FinetuneMAE, batch_size=64)),
    "train-vit": (train_vit.command, diagnosed(train_vit.TrainViT, batch_size=IMAGES)),
    "train-resnet": (train_resnet.command, diagnosed(train_resnet.TrainResNet, batch_size=64)),
    "train-resnet-jax": (train_resnet_jax.command, train_resnet_jax.DIAGNOSED_OPTIONS),
}
"""Commands that print a diagnosis, with the options that it names."""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_that_advice_names_is_one_of_the_command(name):
    command, options = COMMANDS[name]
    known = {spelling for each in command.params if isinstance(each, click.Option) for spelling in each.opts}
    assert {option.name for option in options.values()} <= known
    assert options.keys() <= SETTINGS | {"transfer_ahead"}


def test_options_of_trainings_set_what_their_names_say():
    config = train_resnet_jax.config_of(
        workdir="x", dataset_num_workers=3, dataset_prefetch_factor=5, dataset_cache=True, batch_size=8
    ).loader_config()
    assert (config.threads, config.prefetch_batches, config.batch_size) == (3, 5, 8)
    assert config.cache_dir is not None
    assert pretrain_mae.PretrainMAE(data_path="x", num_workers=3).decodes_in_threads
    assert finetune_mae.FinetuneMAE(data_path="x", num_workers=3).processes == 3


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("diagnose", "--batch-size 512"),
        ("pretrain-mae", "--batch-size 256"),
        ("train-vit", "--batch-size 512"),
        ("train-resnet", "--batch-size 256"),
        ("train-resnet-jax", "--config.batch-size 512"),
    ],
)
def test_a_larger_batch_is_typed_as_the_command_counts_it(name, typed):
    assert COMMANDS[name][1]["batch_size"].text(4 * IMAGES) == typed


def test_a_batch_of_all_devices_is_typed_by_the_flag_that_was_given():
    options = diagnosed(pretrain_mae.PretrainMAE, batch_size=-1, effective_batch_size=IMAGES)
    assert options["batch_size"].text(4 * IMAGES) == "--effective-batch-size 512"


def setup(name, **settings):
    config = LoaderConfig(batch_size=IMAGES, image_size=32, **settings)
    return RunSetup(url="x", split="train", config=config, transfer_ahead=0, options=COMMANDS[name][1])


def test_threads_that_follow_from_the_processes_are_not_typed():
    run = setup("finetune-mae", processes=2)
    threads = replace(run.config, processes=0).num_threads
    assert run.typed({"threads": threads, "processes": 0}) == "--num-workers 0"
    assert not run.can_set({"threads": threads + 1, "processes": 0})


def test_only_settings_with_an_option_are_kept():
    run = setup("train-resnet-jax")
    assert run.settable({"prefetch_batches": 12, "reads_in_flight": 512}) == {"prefetch_batches": 12}
    assert run.typed({"cache_dir": "/tmp/x"}) == "--config.dataset.cache True"
