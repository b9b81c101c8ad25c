"""The long checks at their full count: `make soak SHOW=crashes`, or `python -m tests.soak crashes`.

Each is a list of named cases. What has passed is kept in build/soak/<name>.jsonl, so an interrupted soak goes on where
it stopped; remove the file to start over. Exits 1 when a case fails, after running all of them.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dataprep.demo.make import write_demo
from dataprep.errors import AccessError
from dataprep.sources import Feature, ImageDataset, SplitFacts, images_in
from dataprep.sources.custom import Image
from dataprep.sources.imagenet import published_classes
from dataprep.storage import Storage, open_storage
from dataprep.storage.base import ChangedError
from tests.attacks import all_attacks
from tests.conftest import BUCKET, ENVIRONMENT
from tests.fuzz.run import TARGETS, fuzz
from tests.support import changed_builds
from tests.support.adoption import upload
from tests.support.azurite import azurite
from tests.support.builds import FORMATS, build, build_arguments, dataprep, digests, succeeds
from tests.support.crashes import Reader, kill_often, stop_everywhere
from tests.support.crashes_laion import crash_cases
from tests.support.faults import linked_copy, plant
from tests.support.fetching import fetch_mixture
from tests.support.finished import build_here, verify_here
from tests.support.gcs_emulator import GCSEmulator
from tests.support.histories import history, revisions
from tests.support.hostile import HOSTILE, fault_of
from tests.support.jpeg_crops import compare_crops
from tests.support.laion_builds import build_twice, plan_flat
from tests.support.living import killed_and_changed
from tests.support.loading import killed_and_resumed, mixture_killed_and_resumed
from tests.support.map_kills import column_digests, kill_maps, map_words
from tests.support.mixing import compare_lives, compare_windows
from tests.support.on_use import on_use
from tests.support.own_data import annotated_rows, build_own, picture, write_files, write_pets
from tests.support.packs_soak import packs_killed_and_resumed, random_configuration
from tests.support.parts import parts_of_a_build
from tests.support.picture_verdicts import FORMATS as PICTURE_FORMATS
from tests.support.picture_verdicts import compare as compare_verdicts
from tests.support.picture_verdicts import compare_sound
from tests.support.planning import plan_samples
from tests.support.planted_bugs import BUGS, plant_bug
from tests.support.planted_modules import CASES, planted_copy, planted_that_ran, run_inside
from tests.support.rechecked import check_minds
from tests.support.replication import kill_replicate
from tests.support.tables import write_dogs, write_hub
from tests.support.tutorials import TUTORIALS, run_tutorial
from tests.support.two_builds import schedule

VAL_SHARE = 4
"""One picture of so many is in val."""


class Scenes(ImageDataset):
    """A class as somebody might write it: pictures in a zip, and a file with what is known of them."""

    name = "scenes"
    facts: Mapping[str, SplitFacts] = {"train": SplitFacts(samples=None), "val": SplitFacts(samples=None)}
    features: Mapping[str, Feature] = {"caption": Feature("text"), "score": Feature("float64")}

    def enumerate(self, root: Storage, split: str) -> Iterator[Image]:
        rows = json.loads(root.read("rows.json"))
        for image in images_in(root, "photos.zip"):
            row = rows[image.key]
            if row["split"] == split:
                values = {name: row[name] for name in self.features}
                yield replace(image, label=row["label"], annotations=values)


SCENES = f"{__name__}:{Scenes.__name__}"
"""The class as the command names it."""


def write_scenes(root: Path, images: int) -> None:
    """Write the originals of `Scenes`."""
    root.mkdir(parents=True)
    rows: dict[str, Any] = {}
    with zipfile.ZipFile(root / "photos.zip", "w") as archive:
        for number, row in enumerate(annotated_rows(images)):
            archive.writestr(f"{number}.jpg", _picture(number))
            split = "train" if number % VAL_SHARE else "val"
            rows[str(number)] = {"split": split, "label": ("day", "dusk", "night")[number % 3], **row}
    (root / "rows.json").write_text(json.dumps(rows))


def write_parquet_imagenet(root: Path, images: int) -> None:
    """Write ImageNet as the Hub has it: names, labels and splits of `ILSVRC/imagenet-1k`, of three classes."""
    wnids = published_classes()[:3]
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "validation": []}
    for number in range(images):
        label = number % len(wnids)
        split = "train" if number % VAL_SHARE else "validation"
        stem = f"{wnids[label]}_{number}" if split == "train" else f"ILSVRC2012_val_{number + 1:08d}"
        image = {"bytes": _picture(number), "path": f"{stem}_{wnids[label]}.JPEG"}
        rows[split].append({"image": image, "label": label, "caption": None})
    half = len(rows["train"]) // 2
    for name, part in (("train-00000", rows["train"][:half]), ("train-00001", rows["train"][half:])):
        write_hub(root / f"data/{name}-of-00002.parquet", part, wnids, row_group_size=7)
    write_hub(root / "data/validation-00000-of-00001.parquet", rows["validation"], wnids, row_group_size=7)


def write_finished(root: Path, images: int) -> None:
    """Write a dataset with classes and annotations, to be converted."""
    with tempfile.TemporaryDirectory(prefix="pets-") as folder:
        write_pets(Path(folder) / "pets", images)
        build_own(Path(folder) / "pets", root)


def _picture(number: int) -> bytes:
    """A small picture, which some builds have to repair."""
    return picture(number, "PNG" if number % 20 == 7 else "JPEG", (32 + number % 50, 24))


def _demo(name: str) -> Callable[[Path, int], object]:
    return lambda root, images: write_demo(name, root, images=images, odd=True)


WRITERS: dict[str, Callable[[Path, int], object]] = {
    **{name: _demo(name) for name in ("coco", "coco-annotated", "imagenet")},
    "pets": write_pets,
    "dogs": write_dogs,
    "scenes": write_scenes,
    "imagenet-parquet": write_parquet_imagenet,
    "finished": write_finished,
}
"""Functions that write originals into a folder that does not exist, with so many images."""
RECIPES = {
    "coco-dup5": "coco",
    "imagenet": "imagenet",
    "imagenet-parquet": "imagenet-parquet",
    "folder": "pets",
    "table": "dogs",
    "coco": "coco-annotated",
    SCENES: "scenes",
    "convert": "finished",
}
"""Every recipe as `build_arguments` takes it, with its originals."""

learning = on_use("tests.support.learning")
training, training_fsdp = on_use("tests.support.training"), on_use("tests.support.training_fsdp")
training_changes = on_use("tests.support.training_changes")
watched_runs = on_use("tests.support.watched_runs")
training_jax, training_jax_mae = on_use("tests.support.training_jax"), on_use("tests.support.training_jax_mae")
STATE = Path("build/soak")
MIXTURES_A_CASE = 200
LONG_MARK = "pytest.mark." + "long"
PUBLISHED = ("coco-dup5", "imagenet")
Case = tuple[str, Callable[[Path], object]]
"""A name, and what runs it in an empty folder; what it returns is shown and kept."""


def each(name: str, run: Callable[..., object], values: Iterable[Any]) -> Iterator[Case]:
    """Yield a case for each value, or each tuple of values, which its name and `run` get before the folder."""
    for value in values:
        some = value if isinstance(value, tuple) else (value,)
        yield name.format(*some), partial(run, *some)


@cache
def originals(name: str, images: int) -> Path:
    """Originals for all cases of a soak, odd ones among them."""
    folder = Path(tempfile.mkdtemp(prefix=f"soak-{name}-")) / name
    WRITERS[name](folder, images)
    return folder


@cache
def emulator() -> GCSEmulator:
    found = GCSEmulator().__enter__()
    found.create_bucket(BUCKET)
    os.environ["STORAGE_EMULATOR_HOST"] = found.url
    return found


def bucket_url(name: str) -> str:
    emulator()
    return f"gs://{BUCKET}/{name}-{uuid4().hex}"


# Odd images: 2,000 of them in all formats, on disk and in a bucket, verified


def odd_images() -> Iterator[Case]:
    return each("{} {}", _build_and_verify, product(FORMATS, ("disk", "bucket")))


def _build_and_verify(fmt: str, place: str, folder: Path) -> str:
    output = str(folder / "out") if place == "disk" else bucket_url(f"odd-images-{fmt}")
    summary = build("imagenet", originals("imagenet", 2000), output, fmt, "--shard-bytes", "32MiB")
    verified = dataprep("verify", output, "--deep", timeout_s=900)
    assert verified.returncode == 0, verified.stdout[-2000:] + verified.stderr[-2000:]
    train = summary["splits"][0]
    assert train["samples"] + sum(train["rejected"].values()) == 2000
    return f"{train['samples']} samples, repaired {train['repaired']}, rejected {train['rejected']}"


# Same bytes: on any number of workers, in any place, interrupted or not

KILLS_A_PAIR = 17
"""Kills of each recipe in each format: 51 of a recipe."""


def same_bytes() -> Iterator[Case]:
    ways = ("2 workers", "4 workers", "FnApiRunner", "bucket", "killed and resumed", "moved originals")
    yield from each("{} {} {}", _same_bytes, product(RECIPES, FORMATS, ways))
    yield from each("coco-dup5 {} physical", _same_physical, FORMATS)


@cache
def reference(dataset: str, fmt: str, *more: object, images: int = 600) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="soak-reference-") as folder:
        build(dataset, originals(RECIPES[dataset], images), f"{folder}/out", fmt, *more, "--workers", 1)
        return digests(f"{folder}/out")


def _same_bytes(dataset: str, fmt: str, way: str, folder: Path) -> str:
    shards = ("--num-shards", 12)
    expected = reference(dataset, fmt, *shards)
    source, output = originals(RECIPES[dataset], 600), str(folder / "out")
    if way == "bucket":
        root = bucket_url("same-bytes")
        output = f"{root}/out"
        build(dataset, upload(source, f"{root}/originals"), output, fmt, *shards, "--workers", 2)
        if dataset == "convert":  # its manifest names the URL of the old dataset
            found = digests(output)
            assert {name for name in expected if found.get(name) != expected[name]} <= {"dataset.json"}
            return f"{len(expected)} files equal but for the URL in dataset.json"
    elif way == "killed and resumed":
        arguments = build_arguments(dataset, source, output, fmt, *shards)
        kill_often(random.Random(way), arguments, Path(output), expected, workers=2, kills=KILLS_A_PAIR)
    elif way == "moved originals":
        moved = folder / "other place" / source.name  # the name of its folder is in the manifest of a conversion
        shutil.copytree(source, moved)
        for path in moved.rglob("*"):
            os.utime(path, (10**9, 10**9))
        build(dataset, moved, output, fmt, *shards)
    else:
        runner = ("--runner", way) if way == "FnApiRunner" else ()
        build(dataset, source, output, fmt, *shards, *runner, "--workers", 4 if way == "4 workers" else 2)
    assert digests(output) == expected
    return f"{len(expected)} files equal"


def _same_physical(fmt: str, folder: Path) -> str:
    expected = reference("coco-dup5", fmt, "--repeat", "physical")
    build("coco-dup5", originals("coco", 600), folder / "out", fmt, "--repeat", "physical", "--workers", 3)
    assert digests(folder / "out") == expected
    return f"{len(expected)} files equal"


# Crashes: builds that are killed, that meet each other, and whose requests fail

KILL_ROUNDS = 48
"""Each recipe twice in each format."""
KILLS_A_ROUND = 4


def crashes() -> Iterator[Case]:
    for fmt in FORMATS:
        yield f"every commit boundary, {fmt}", partial(_every_boundary, "imagenet", fmt, 600, ("--num-shards", 3))
    one = ("--num-shards", 1)
    yield (
        "every commit boundary, a user's own pictures with annotations",
        partial(_every_boundary, "folder", "imagefolder", 8, one),
    )
    yield "every commit boundary, a conversion", partial(_every_boundary, "convert", "imagefolder", 8, one)
    yield from each("random kills, round {}", _random_kills, range(KILL_ROUNDS))
    yield from each("one request in ten fails, round {}", _failing_requests, range(10))


def _every_boundary(dataset: str, fmt: str, images: int, shards: tuple[object, ...], folder: Path) -> str:
    """The annotations of an image folder are one more file to publish; a conversion reads an index, no originals."""
    more = (*shards, "--split", "val" if dataset == "imagenet" else "train")
    expected = reference(dataset, fmt, *more, images=images)
    arguments = build_arguments(dataset, originals(RECIPES[dataset], images), folder / "out", fmt, *more)
    every = 2 if (dataset, fmt) == ("imagenet", "imagefolder") else 1
    return f"{stop_everywhere(arguments, folder / 'out', expected, every)} stops"


def _random_kills(number: int, folder: Path) -> str:
    rng = random.Random(number)
    dataset, fmt = list(product(RECIPES, FORMATS))[number % (len(RECIPES) * len(FORMATS))]
    shards = ("--num-shards", 12)
    expected = reference(dataset, fmt, *shards)
    arguments = build_arguments(dataset, originals(RECIPES[dataset], 600), folder / "out", fmt, *shards)
    with Reader(folder / "out", expected) as reader:
        finished, redone = kill_often(rng, arguments, folder / "out", expected, workers=2, kills=KILLS_A_ROUND)
    assert reader.wrong == [], reader.wrong
    return f"{KILLS_A_ROUND} kills, {finished} builds finished, at most {redone} shards redone after a kill"


def _failing_requests(number: int, folder: Path) -> str:
    fmt, shards = FORMATS[number % len(FORMATS)], ("--num-shards", 12)
    expected = reference("imagenet", fmt, *shards)
    output = bucket_url("failing-requests")
    emulator().set_faults(rate=0.1, seed=number)
    try:
        run = dataprep(*build_arguments("imagenet", originals("imagenet", 600), output, fmt, *shards), timeout_s=900)
    finally:
        emulator().set_faults(rate=0.0)
    assert "Traceback" not in run.stderr, run.stderr
    if run.returncode != 0:
        assert not open_storage(output).stat("dataset.json"), "a manifest after a failed build"
        return f"a clear error: {run.stderr.strip()[:200]}"
    assert digests(output) == expected
    return "success"


# Planted faults: verify finds each, and no other

FAULTS_A_CASE = 50


def planted_faults() -> Iterator[Case]:
    for first in range(0, 1000, FAULTS_A_CASE):
        yield f"faults {first} to {first + FAULTS_A_CASE - 1}", partial(_faults, first)
    yield "no false alarm", _no_false_alarm


@cache
def good_dataset(dataset: str, fmt: str) -> Path:
    output = Path(tempfile.mkdtemp(prefix="soak-good-")) / "out"
    build(dataset, originals(RECIPES[dataset], 120), output, fmt, "--num-shards", 4)
    return output


def _faults(first: int, folder: Path) -> str:
    missed = []
    for seed in range(first, first + FAULTS_A_CASE):
        rng = random.Random(f"dataset/{seed}")
        good = good_dataset(rng.choice(PUBLISHED), rng.choice(FORMATS))
        linked_copy(good, folder / "work")
        planted = plant(folder / "work", seed)
        if not verify_here(folder / "work").findings:
            missed.append(f"{seed}: {planted}")
    assert not missed, missed
    return f"{FAULTS_A_CASE} found"


def _no_false_alarm(folder: Path) -> str:
    for dataset in RECIPES:
        for fmt in FORMATS:
            for deep in (False, True):
                assert not verify_here(good_dataset(dataset, fmt), deep=deep).findings
    return f"{len(RECIPES) * len(FORMATS) * 2} verifications of whole datasets"


# Hostile originals: a build refuses or survives each


def planted_modules() -> Iterator[Case]:
    """Every command and entry inside a folder that has a file for every module."""
    for name, words in CASES.items():
        yield name, partial(_inside_planted, words)


def _inside_planted(words: tuple[str, ...], folder: Path) -> str:
    write_demo("imagenet", folder / "originals", images=60, odd=False)
    build("imagenet", folder / "originals", folder / "shards", "webdataset")
    inside = planted_copy(folder / "shards", folder / "originals", folder)
    run = run_inside(inside, words)
    if names := planted_that_ran(inside):
        raise AssertionError(f"{len(names)} planted modules ran: {names[:5]}")
    return f"exit code {run.returncode}"


def hostile_originals() -> Iterator[Case]:
    for case in HOSTILE:
        yield case.name, partial(_hostile, case)


def _hostile(case: object, folder: Path) -> str:
    fault = fault_of(case, folder)
    assert not fault, fault
    return case.outcome


# Loading


def load_resume() -> Iterator[Case]:
    return each("killed and resumed on 4, 2 and 1 ranks, round {}", _load_resume, range(20))


def _load_resume(number: int, folder: Path) -> str:
    fmt = FORMATS[number % len(FORMATS)]
    return f"{killed_and_resumed(loaded(fmt), folder, random.Random(number))} batches"


def living() -> Iterator[Case]:
    return each("history {}", lambda number, folder: killed_and_changed(folder, random.Random(number)), range(200))


def rechecks() -> Iterator[Case]:
    """Sites that change their minds about one image in a hundred."""
    yield "10,000 images of 200 hosts", lambda folder: check_minds(folder, 10_000, 1_000)


@cache
def _revisions() -> dict[str, list[str]]:
    return revisions(Path(tempfile.mkdtemp(prefix="soak-histories-")))


def histories() -> Iterator[Case]:
    return each("history {}", _history, range(500))


def _history(number: int, folder: Path) -> str:
    samples, state_bytes = history(random.Random(number), _revisions())
    return f"{samples} samples, none twice or skipped; largest state {state_bytes} bytes"


@cache
def loaded(fmt: str, images: int = 600, dataset: str = "imagenet") -> Path:
    output = Path(tempfile.mkdtemp(prefix="soak-loaded-")) / "out"
    build(dataset, originals(RECIPES[dataset], images), output, fmt, "--num-shards", 5, "--split", "train")
    return output


def mixtures() -> Iterator[Case]:
    for first in range(0, 4000, MIXTURES_A_CASE):
        yield f"orders {first} to {first + MIXTURES_A_CASE - 1}", partial(_mixed_orders, first)
    yield from each("killed at 8 ranks, resumed at 6, 4, 3, 2 and 1, round {}", _mixed_kills, range(20))


def _mixed_orders(first: int, _folder: Path) -> str:
    worst = 0.0
    for seed in range(first, first + MIXTURES_A_CASE):
        compare_lives(random.Random(seed))
        worst = max(worst, compare_windows(random.Random(seed)))
    return f"{MIXTURES_A_CASE} equal to the walk; windows of 1,000 differ by {worst:.2f} samples from their shares"


def _mixed_kills(number: int, folder: Path) -> str:
    """Every second round changes the weights at each resume."""
    rng, fmt = random.Random(number), FORMATS[number % len(FORMATS)]
    urls = {name: str(loaded(fmt, dataset=name)) for name in PUBLISHED}
    mixes = []
    for place in range(6):
        weights = (3, 1) if number % 2 == 0 else (rng.randint(1, 9), rng.randint(1, 9))
        weighted = zip(urls.items(), weights, strict=True)
        datasets = [{"url": url, "name": name, "weight": weight} for (name, url), weight in weighted]
        mixes.append(folder / f"{place}.json")
        mixes[-1].write_text(json.dumps({"version": 1, "datasets": datasets, "epoch_samples": 600}))
    return f"{mixture_killed_and_resumed(mixes, folder, rng, (8, 6, 4, 3, 2, 1))} batches"


def load_memory() -> Iterator[Case]:
    return each("50 epochs, {}, {} processes", _load_memory, product(FORMATS, (0, 2)))


def _load_memory(fmt: str, processes: int, _folder: Path) -> str:
    settings = {"batch_size": 64, "image_size": 112, "processes": processes}
    program = [sys.executable, "-m", "tests.support.load_memory", str(loaded(fmt, 2000)), "50", json.dumps(settings)]
    run = subprocess.run(program, capture_output=True, text=True, timeout=1800, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert found["grown"] < 0.02, found
    assert found["before"] == found["after"], found
    return f"{found['bytes'][-1] / 1e6:.0f} MB, grown by {found['grown']:.2%} after the fifth epoch"


def load_transforms() -> Iterator[Case]:
    """timm's augmentation, the same for any number of worker processes."""
    return each("{} processes", _load_transforms, (1, 2, 4))


def _load_transforms(number: int, _folder: Path) -> str:
    from tests.loaders.decode.test_transforms import augmented_alike

    augmented_alike(loaded("webdataset"), processes=(number,))
    return "the same batches"


# Tests that `make test` leaves out


def long_tests() -> Iterator[Case]:
    for path in sorted(Path("tests").rglob("test_*.py")):
        if LONG_MARK in path.read_text():
            yield str(path), partial(_long_tests, path)


def _long_tests(path: Path, folder: Path) -> str:
    words = [sys.executable, "-m", "pytest", "-n", "0", "-m", "long", str(path), f"--basetemp={folder / 'pytest'}"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=1800, check=False)
    assert run.returncode == 0, run.stdout[-5000:]
    return next(line for line in run.stdout.splitlines() if " passed" in line)


# `dataprep replicate`: killed at random, resumed, identical


def replicate() -> Iterator[Case]:
    return each("killed 20 times and resumed, {}", _replicate, FORMATS)


def _replicate(fmt: str, _folder: Path) -> str:
    source, target = bucket_url(f"from-{fmt}"), bucket_url(f"to-{fmt}")
    build("imagenet", originals("imagenet", 600), source, fmt, "--num-shards", 12)
    emulator().set_rewrite_bytes(500_000)
    emulator().set_latency(10)
    try:
        return f"{kill_replicate(random.Random(fmt), source, target, kills=20)} objects stood at the kills"
    finally:
        emulator().set_rewrite_bytes(None)
        emulator().set_latency(0)


# Fetching: 20,000 URLs over 200 hosts, each of a known fate


def fetch() -> Iterator[Case]:
    yield "20,000 URLs", _fetch


def _fetch(_folder: Path) -> str:
    mixed = fetch_mixture()
    assert not mixed.wrong, mixed.wrong[:5]
    return f"{len(mixed.outcomes):,} outcomes, none wrong, {mixed.elapsed_s:.0f} s"


# Training: killed with -9 at random steps, the same losses bit for bit; many devices; what is learned


@cache
def training_data() -> str:
    folder = Path(tempfile.mkdtemp(prefix="soak-training-"))
    write_demo("imagenet", folder / "originals", images=60, odd=False)
    return build_here("imagenet", folder / "originals", folder / "shards", "webdataset")


EXACT_ENTRIES = ("train.pretrain_mae", "train.train_vit", "train.train_resnet")


def exact_flags(module: str) -> dict[str, object]:
    runs = dict(zip(EXACT_ENTRIES, (training.LONG, training_fsdp.LONG, learning.RESNET_EXACT), strict=True))
    return {"device": "cpu" if module == "train.train_resnet" else "xla", **runs[module]}


@cache
def uninterrupted(module: str) -> dict[int, float]:
    """Losses of two runs of 200 steps, which are the same."""
    folder = Path(tempfile.mkdtemp(prefix="soak-runs-"))
    return training.two_runs(module, folder, data_path=training_data(), **exact_flags(module))


def train_exact() -> Iterator[Case]:
    yield from each("{} killed {}", _train_killed, product(EXACT_ENTRIES, range(10)))
    yield "train.train_resnet_jax killed 10 times", lambda folder: training_jax.many_kills(training_data(), folder, 10)


def _train_killed(module: str, number: int, folder: Path) -> str:
    expected, rng = uninterrupted(module), random.Random(f"{module} {number}")
    flags = {"data_path": training_data(), **exact_flags(module)}
    steps = training.killed_and_resumed(module, folder, expected, rng, **flags)
    return f"{len(expected)} losses, killed after {steps}: the same"


def train_changes() -> Iterator[Case]:
    """A masked autoencoder on XLA whose batch is doubled at one resume and whose mixture changes at another."""
    return each("killed 10 times, round {}", _train_changes, range(3))


def _train_changes(number: int, folder: Path) -> str:
    urls = {name: str(loaded("webdataset", 100, dataset=name)) for name in PUBLISHED}
    return training_changes.joints(folder, urls, random.Random(number))


def train_jax() -> Iterator[Case]:
    """Masked autoencoders in JAX: torch_xla's losses, kills, devices and processes."""
    yield "200 steps beside torch_xla", lambda folder: training_jax_mae.beside_torch_xla(training_data(), folder)
    yield "killed 10 times", lambda folder: training_jax_mae.killed_and_resumed(training_data(), folder, 10)
    yield "1, 4 and 8 devices, 2 processes", lambda folder: training_jax_mae.on_devices(training_data(), folder)
    yield "flags and vision transformers", lambda folder: training_jax_mae.variants(training_data(), folder)


LOG_KILLS = 20


def train_watched() -> Iterator[Case]:
    """Logs in a bucket, traces of runs and the time of their causes, as TensorBoard and xprof read them."""
    yield (
        f"killed {LOG_KILLS} times, logs in a bucket",
        lambda _: watched_runs.killed_logs(training_data(), bucket_url("logs"), LOG_KILLS, random.Random(0)),
    )
    for framework in ("torch", "jax"):
        yield f"a trace of {framework}", partial(_traced, framework)
    yield "delays are counted for their causes", lambda folder: watched_runs.counted_delays(training_data(), folder)


def _traced(framework: str, folder: Path) -> str:
    return watched_runs.traced(training_data(), folder, framework)


def train_devices() -> Iterator[Case]:
    return each(
        "{} devices, 50 steps",
        lambda devices, folder: training_fsdp.many_devices(training_data(), folder, devices),
        (4, 8),
    )


def train_learns() -> Iterator[Case]:
    yield "reconstruction of photographs", learning.reconstructs
    yield "features of textures, probed", learning.learns
    yield "a ViT fits 500 images", learning.fits
    yield "a ResNet fits 500 images", learning.fits_resnet
    yield "a ResNet in JAX fits 500 images", training_jax.fit


def laion_statuses() -> Iterator[Case]:
    """LAION: the web at its worst, in two orders, gives one dataset."""
    run = partial(build_twice, rows=20_000, hosts=200, rows_per_shard=2_000)
    return each("20,000 URLs twice, {}", run, ("webdataset", "tfrecord"))


def laion_memory() -> Iterator[Case]:
    """LAION: plans of 50 million rows."""
    return each("a plan of 50 million rows, {}", partial(plan_flat, rows=50_000_000), ("parquet", "jsonl"))


def planning() -> Iterator[Case]:
    """Plans of ImageNet-21k's 14.2 million samples, of 50 million rows of a table, and of a million files on disk."""
    counts = ((14_200_000, "list"), (50_000_000, "list"), (1_000_000, "folder"), (50_000_000, "table"))
    return each("{:,} samples, {}", plan_samples, counts)


PACKS_CASES, PACKS_IN_CASE, PACKS_KILLS = 40, 100, 20


def packs() -> Iterator[Case]:
    """Packs: 4,000 random configurations against a slow reference, and 20 runs on 8 ranks that end as one."""
    yield from each(f"{PACKS_IN_CASE} random configurations, {{}}", _packs_random, range(PACKS_CASES))
    yield from each("killed at 8 ranks, resumed at 6, 4, 3, 2 and 1, round {}", _packs_killed, range(PACKS_KILLS))


def _packs_random(number: int, _folder: Path) -> str:
    batches = [random_configuration(PACKS_IN_CASE * number + each) for each in range(PACKS_IN_CASE)]
    return f"{sum(batches)} batches"


def _packs_killed(number: int, folder: Path) -> str:
    fmt = FORMATS[number % len(FORMATS)]
    return f"{packs_killed_and_resumed(loaded(fmt), folder, random.Random(number))} batches"


def two_builds() -> Iterator[Case]:
    """1,000 times two builds at one place, suspended and resumed at random, half of them in a bucket."""
    return each("schedule {}", _two_at_one_place, range(1000))


def _two_at_one_place(number: int, folder: Path) -> str:
    return schedule(number, folder, bucket_url("two-builds") if number % 2 else None)


def changes() -> Iterator[Case]:
    """Outputs and originals that others change between any two steps of a build: exit 0 means complete and right."""
    run = changed_builds.schedule
    return each("schedule {}", lambda number, folder: run(number, folder, bucket_url("changes")), range(500))


def parts() -> Iterator[Case]:
    """1, 2, 3 and 8 parts, some of which are killed for good, and two groups of other numbers at once."""
    return each("{} parts {} {}", _parts, product(((1,), (2,), (3,), (8,), (2, 3)), FORMATS, range(10)))


def _parts(counts: tuple[int, ...], fmt: str, number: int, folder: Path) -> str:
    num_shards, rng = 16 * sum(counts), random.Random(f"{counts}/{fmt}/{number}")
    shards = ("--num-shards", num_shards, "--split", "train")
    expected = reference("imagenet", fmt, *shards)
    output = bucket_url("parts") if number % 2 else str(folder / "out")
    words = build_arguments("imagenet", originals("imagenet", 600), output, fmt, *shards, "--workers", 1)
    fewest = min(counts)
    killed = set(rng.sample(range(1, fewest + 1), rng.randint(0, fewest - 1)))
    built = parts_of_a_build(words, output, counts, killed, rng)
    assert digests(output) == expected
    assert built <= 1.3 * num_shards, f"{built} of {num_shards} shards were built"
    return f"{len(killed)} killed, {built} of {num_shards} shards built"


MAP_KILLS = 10


def columns() -> Iterator[Case]:
    """`dataprep map` killed 50 times in a pool, and in parts, of which one is killed, or on Beam: the same bytes."""
    yield from each(f"{MAP_KILLS} kills, {{}} {{}}", _map_killed, product(("pool", "parts"), range(5)))
    for words in (("--workers", 4), ("--runner", "FnApiRunner", "--workers", 2)):
        yield " ".join(map(str, words)), partial(_mapped_alike, words)


def _expected_column(root: Path, fmt: str) -> dict[str, str]:
    """Build a dataset without the column, and return the digests of what one worker makes."""
    succeeds(*build_arguments("imagenet", originals("imagenet", 600), root, fmt, "--num-shards", 12))
    succeeds(*map_words(root, "--workers", 1))
    expected = column_digests(root)
    shutil.rmtree(root / "columns")
    return expected


def _mapped_alike(words: tuple[object, ...], folder: Path) -> str:
    expected = _expected_column(folder / "out", FORMATS[0])
    succeeds(*map_words(folder / "out", *words))
    assert column_digests(folder / "out") == expected
    return f"{len(expected)} files equal those of one worker"


def _map_killed(way: str, number: int, folder: Path) -> str:
    root, rng = folder / "out", random.Random(f"{way}/{number}")
    expected = _expected_column(root, FORMATS[number % 3])
    runs = [["--workers", 2]] if way == "pool" else [["--workers", 1, "--part", f"{part}/3"] for part in (1, 2, 3)]
    finished = kill_maps(rng, root, expected, MAP_KILLS, runs)
    return f"{MAP_KILLS} kills, {finished} times complete before the last: the same bytes"


def attacks() -> Iterator[Case]:
    """What reviewers attacked: every attack of tests/attacks."""
    for attack in all_attacks():
        yield attack.name, attack.run


def jpeg_crops() -> Iterator[Case]:
    """100,000 random crops in every form of JPEG, restart markers among them, each beside a full decode."""
    return each("crops {}", _jpeg_crops, range(100))


def _jpeg_crops(seed: int, _folder: Path) -> str:
    most_pixels = 400 if seed % 2 else 120
    return f"{compare_crops(1000 + seed, pictures=2, most_pixels=most_pixels)} crops"


MUTANTS_A_CASE, SOUND_A_CASE = 2_000, 10_000


def picture_verdicts() -> Iterator[Case]:
    """20,000 mutants of pictures: none that a build or a loader keeps is refused by two other decoders."""
    return each("{} from {}", _picture_verdicts, product(PICTURE_FORMATS, range(0, 4_000, MUTANTS_A_CASE)))


def _picture_verdicts(kind: str, first: int, _folder: Path) -> str:
    found = compare_verdicts([kind], first, MUTANTS_A_CASE)[kind]
    assert not found["kept"], json.dumps(found)
    return json.dumps(found)


def sound_jpegs() -> Iterator[Case]:
    """1,000,000 mutants of JPEGs: libjpeg has no fault to find in any that our reader calls sound."""
    return each(
        "from {}",
        lambda first, _: json.dumps(compare_sound(first, SOUND_A_CASE)),
        range(0, 1_000_000, SOUND_A_CASE),
    )


def planted_mutants() -> Iterator[Case]:
    """Mistakes planted over all rooms, each of which the tests beside it find."""
    return each("{}", _mutants, ("dataprep/", "loaders/", "pipelines/", "train/"))


def _mutants(room: str, _folder: Path) -> str:
    run = subprocess.run([sys.executable, "tests/mutants.py", room], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    return run.stdout.splitlines()[-1]


def site() -> Iterator[Case]:
    """The documentation site, built without a warning, and every page of it in a browser."""
    yield "site", _site


def _site(_folder: Path) -> str:
    for words in (["make", "site"], [sys.executable, "-m", "pytest", "-n", "0", "tests/site"]):
        run = subprocess.run(words, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    return next(line for line in run.stdout.splitlines() if " passed" in line)


def azure() -> Iterator[Case]:
    """Pictures in a container of Azurite, which npm installs: listed, read and built as from a disk."""
    yield "azurite", _azure


def _azure(folder: Path) -> str:
    import obstore
    from obstore.store import AzureStore

    names = ("a b%41.jpg", "cats/1.jpg", "Cats/2.jpg", "ä/x#y?z.jpg", "~t+p&amp.jpg")
    write_files(folder / "pictures", {f"train/{name}": picture(number) for number, name in enumerate(names)})
    with azurite(folder / "azurite", "box") as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        store = AzureStore("box", client_options={"allow_http": True})
        for info in open_storage(str(folder / "pictures")).list():
            obstore.put(store, f"mine/{info.name}", (folder / "pictures" / info.name).read_bytes())
        storage = open_storage("az://box/mine")
        found = list(storage.list())
        assert [info.name for info in found] == sorted(f"train/{name}" for name in names)
        assert [storage.stat(info.name) for info in found] == found
        build_own(storage.url, folder / "azure", label_from="none")
        build_own(folder / "pictures", folder / "disk", label_from="none")
        assert digests(folder / "azure") == digests(folder / "disk")
        version = storage.stat("train/cats/1.jpg").version
        obstore.put(store, "mine/train/cats/1.jpg", b"another")
        with pytest.raises(ChangedError):
            storage.read_range("train/cats/1.jpg", 0, 3, version)
        with pytest.raises(AccessError, match="az://none does not exist"):
            list(open_storage("az://none").list())
        patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
        with pytest.raises(AccessError, match="reading or listing it is denied"):
            list(open_storage("az://box").list())
    return f"{len(found)} pictures"


def tutorials() -> Iterator[Case]:
    """Every tutorial, run as it stands; `make test` runs the first of them."""
    return each("{}", run_tutorial, TUTORIALS)


# Fuzzing: the extensions in C under sanitizers for ten minutes, after each bug that is planted in them was found

FUZZ_S = 300
"""Length of each target's run."""
PLANTED_S = 120
"""A planted bug is found within this time."""


def fuzz_extensions() -> Iterator[Case]:
    yield from each("planted: {}", _find_planted, BUGS)
    yield from each("{}", lambda target, _: fuzz(target, seconds=FUZZ_S), TARGETS)


def _find_planted(name: str, folder: Path) -> str:
    target = plant_bug(folder, name)
    started_s = time.monotonic()
    with pytest.raises(AssertionError, match=r"broken promise: |SUMMARY: ") as raised:
        fuzz(target, seconds=PLANTED_S, sources=folder)
    found = re.search(r"broken promise: .*|SUMMARY: [^/]*", str(raised.value))
    return f"{found[0] if found else ''}; {time.monotonic() - started_s:.0f} s with compilation"


SHOWS = {
    "attacks": attacks,
    "azure": azure,
    "jpeg-crops": jpeg_crops,
    "pictures": picture_verdicts,
    "sound-jpegs": sound_jpegs,
    "two-builds": two_builds,
    "mutants": planted_mutants,
    "odd-images": odd_images,
    "same-bytes": same_bytes,
    "changes": changes,
    "columns": columns,
    "crashes": crashes,
    "planted-faults": planted_faults,
    "hostile-originals": hostile_originals,
    "planted-modules": planted_modules,
    "load-resume": load_resume,
    "living": living,
    "histories": histories,
    "mixtures": mixtures,
    "load-memory": load_memory,
    "load-transforms": load_transforms,
    "long-tests": long_tests,
    "replicate": replicate,
    "site": site,
    "fetch": fetch,
    "fuzz": fuzz_extensions,
    "laion-statuses": laion_statuses,
    "laion-crash": crash_cases,
    "laion-memory": laion_memory,
    "packs": packs,
    "parts": parts,
    "planning": planning,
    "train-changes": train_changes,
    "train-exact": train_exact,
    "train-devices": train_devices,
    "train-jax": train_jax,
    "train-learns": train_learns,
    "train-watched": train_watched,
    "tutorials": tutorials,
    "rechecks": rechecks,
}


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in SHOWS:
        sys.exit(f"usage: make soak SHOW=NAME, where NAME is one of {', '.join(SHOWS)}")
    os.environ.update(ENVIRONMENT)
    STATE.mkdir(parents=True, exist_ok=True)
    state = STATE / f"{sys.argv[1]}.jsonl"
    passed = {json.loads(line)["case"] for line in state.read_text().splitlines()} if state.exists() else set()
    failed = []
    cases = list(SHOWS[sys.argv[1]]())
    started_s = time.monotonic()
    for number, (name, run) in enumerate(cases, 1):
        if name in passed:
            continue
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            try:
                result = run(Path(folder))
            except Exception:  # noqa: BLE001  the others are still worth running
                failed.append(name)
                print(f"[{number}/{len(cases)}] {name}: FAILED\n{traceback.format_exc()}", flush=True)
                continue
        print(f"[{number}/{len(cases)}] {name}: {result}", flush=True)
        with state.open("a") as file:
            file.write(json.dumps({"case": name, "result": str(result)}) + "\n")
    elapsed_s = time.monotonic() - started_s
    print(f"{len(cases) - len(failed)} passed, {len(failed)} failed; this run {elapsed_s:.0f} s {failed[:5]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
