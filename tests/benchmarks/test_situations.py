"""The judge of `dataprep diagnose`: its own training loop, the changes it tries, its verdicts; and the generator."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.originals import corpus_images
from benchmarks.situations.judge import RIGHT, TIED, WRONG, Truth, do_what_is_named, find_truth, named_by
from benchmarks.situations.machine import Machine
from benchmarks.situations.situation import (
    CACHE,
    LOCATION,
    NONE,
    Change,
    Situation,
    change_of,
    diagnose_arguments,
    possible_changes,
)
from benchmarks.situations.training_loop import Measured
from dataprep.errors import DataprepError
from loaders import open_loader
from loaders.diagnosis.observed_run import parse_simulated
from loaders.diagnosis.stages import request_latency_s

IMAGE_SIZE = 32
BATCH = 8


@dataclass(frozen=True, slots=True)
class Known:
    """A situation whose truth follows from its numbers."""

    situation: Situation
    best: str
    images_per_s: float
    """Rate without a change."""
    best_images_per_s: float
    """Rate after the best change, as the judge makes it: a batch four times as large, two threads or processes."""


def small_set() -> list[Known]:
    """Return four situations for two cores or more; each takes a second or two to measure."""
    return [
        _known("device", "simulated:250,transfer=600", NONE, 250, 250, transfer_ahead=2),
        _known("transfer", "simulated:500,transfer=500", "transfer-ahead", 250, 500),
        _known("step-overhead", "simulated:2000,step-ms=36", "batch", 200, 615, transfer_ahead=2),
        _known("transfer-overhead", "simulated:800,transfer-ms=30", "batch", 200, 457),
    ]


def _known(name: str, device: str, best: str, images_per_s: float, best_images_per_s: float, **settings: Any) -> Known:
    situation = Situation(
        id=name,
        cause=name,
        is_real=False,
        device=device,
        batch_size=BATCH,
        image_size=IMAGE_SIZE,
        short_side=round(IMAGE_SIZE / 0.875),
        **settings,
    )
    return Known(situation, best, images_per_s, best_images_per_s)


BENCHMARK = Path(__file__).parents[2] / "benchmarks/diagnose.py"
SECONDS = 0.3
KNOWN = {known.situation.id: known for known in small_set()}
PLAIN = Situation(id="plain", cause="", is_real=True, device="simulated:100", image_size=32, threads=2)
IN_BUCKET = replace(PLAIN, latency_ms=50.0, reads_in_flight=2, prefetch_batches=2, batch_size=8)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose datasets are made of 120 photographs."""
    work = tmp_path_factory.mktemp("situations")
    corpus_images(None, work, 120)
    with Machine(work, work / "corpus") as machine:
        yield machine


# The judge

LOADER_IMAGES_PER_S = 2000.0


def exactly(situation: Situation, seconds: float) -> Measured:
    """Return what a machine would measure on which nothing but the simulated device and the loader takes time."""
    device, images = parse_simulated(situation.device), situation.batch_size
    transfer_s = device.transfer_s + images / device.transfer_images_per_s
    step_s = device.step_s + images / device.images_per_s
    busy_s = max(transfer_s, step_s) if situation.transfer_ahead else transfer_s + step_s
    return Measured(images, max(busy_s, images / LOADER_IMAGES_PER_S))


@pytest.mark.parametrize("name", ["device", "transfer", "step-overhead", "transfer-overhead"])
def test_the_judge_finds_the_best_change_that_exact_rates_imply(name: str) -> None:
    known = KNOWN[name]
    changes = possible_changes(known.situation, cores=2, has_extension=True)
    truth = find_truth(known.situation, changes, exactly, SECONDS, tries=1)
    assert truth.base == pytest.approx(known.images_per_s, rel=0.01)
    assert max(rate for _, rate in truth.changes) == pytest.approx(known.best_images_per_s, rel=0.01)
    assert truth.verdict(known.best) == RIGHT


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_of_the_loader_ends_the_loop(ahead: int, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    situation = replace(PLAIN, transform="test_situations:cut_off", transfer_ahead=ahead)
    with pytest.raises(DataprepError, match="transform gave"):
        machine.rate(situation, SECONDS)


def cut_off(image_HWC, rng):
    return image_HWC[:1]


def test_a_bucket_has_the_latency_that_the_situation_sets(machine: Machine) -> None:
    def latency_s(situation: Situation, tries: int) -> float:
        with machine.into(situation) as url, open_loader(url, batch_size=8, image_size=32) as loader:
            return min(request_latency_s(loader) for _ in range(tries))

    slow = replace(IN_BUCKET, latency_ms=1_000.0)  # in which the quickest of 21 reads has come on any machine
    assert latency_s(LOCATION.applied(slow), 7) < 1.0 <= latency_s(slow, 1)


# Verdicts


def truth(base: float, **rates: float) -> Truth:
    return Truth(base, tuple((Change(name=name, settings={}), rate) for name, rate in rates.items()))


def test_ties_with_the_best_count_as_right_and_gains_below_five_percent_as_none() -> None:
    found = truth(100, cache=200, resize=193, batch=191)
    assert found.best == "cache"
    assert [found.verdict(name) for name in ("cache", "resize", "batch", NONE)] == [RIGHT, TIED, WRONG, WRONG]
    found = truth(100, cache=104.9, resize=104.8)
    assert found.best == NONE
    assert [found.verdict(name) for name in ("cache", "resize", NONE)] == [WRONG, WRONG, RIGHT]
    found = truth(100, cache=106, resize=104)
    assert [found.verdict(name) for name in ("cache", "resize", NONE)] == [RIGHT, WRONG, WRONG]


def test_the_best_changes_are_measured_again() -> None:
    changes = possible_changes(IN_BUCKET, cores=2, has_extension=True)
    asked: Counter[Situation] = Counter()

    def rate(situation: Situation, seconds: float) -> Measured:
        asked[situation] += 1
        return Measured(round(1e4 * seconds * (1 + situation.is_cached)), seconds)

    assert find_truth(IN_BUCKET, changes, rate, 1.0).best == "cache"  # steady: tried once
    assert (asked[IN_BUCKET], asked[CACHE.applied(IN_BUCKET)]) == (2, 2)
    assert sum(asked.values()) == len(changes) + 1 + 3


def test_all_changes_are_tried_again_if_the_machine_was_unsteady() -> None:
    rates = iter([100, 200, 200, 150, *(100, 200, 200, 104)])
    change = Change(name="batch", settings={"batch_size": 128})

    found = find_truth(PLAIN, [change], lambda *_: Measured(next(rates), 1.0), 1.0)

    assert (found.base, found.drift) == (102, pytest.approx(0.04))
    assert next(rates, None) is None


FIX = {"name": "workers", "settings": {"threads": 3, "processes": 0}, "gain": 1.8, "images_per_s": 180.0}
FIX["predicted_images_per_s"] = 165.0
RATES = {"observed_images_per_s": 98.0, "predicted_images_per_s": 110.0}


def test_a_diagnosis_is_read_and_tried_with_its_own_settings() -> None:
    def rate(situation: Situation, seconds: float) -> Measured:
        return Measured(situation.threads * 50, 1.0)

    said = {"fixes": [FIX, FIX | {"name": "cache"}], **RATES}
    diagnosis, found = do_what_is_named(PLAIN, lambda _: said, rate, 1.0)
    assert (named_by(diagnosis), found.predicted, found.measured) == ("workers", 180.0, 150.0)
    assert (found.error, found.error_from_stages) == (pytest.approx(0.2), pytest.approx(0.1))
    for fixes in ([], [FIX | {"gain": 1.04}]):
        said = {"fixes": fixes, **RATES}
        diagnosis, found = do_what_is_named(PLAIN, lambda _, said=said: said, rate, 1.0)
        assert (named_by(diagnosis), found.predicted, found.measured) == (NONE, 98.0, 100.0)


@pytest.mark.parametrize("unsteady", [[100, 180, 180, 120], [100, 180, 150, 100]])
def test_diagnosis_is_repeated_when_the_machine_was_not_steady(unsteady: list[int]) -> None:
    """In order: before, the change twice, after."""
    rates, promised = iter([*unsteady, 100, 160, 170, 104]), iter([180.0, 170.0])

    _, found = do_what_is_named(
        PLAIN,
        lambda _: {"fixes": [FIX | {"images_per_s": next(promised)}], **RATES},
        lambda *_: Measured(next(rates), 1.0),
        1.0,
    )

    assert (found.predicted, found.measured, found.drift) == (170.0, 165.0, pytest.approx(10 / 160))
    assert next(rates, None) is None


def test_a_fix_is_translated_into_the_change_that_it_names() -> None:
    assert change_of({"name": "cache", "settings": {"cache_dir": "/tmp/x"}}).applied(IN_BUCKET).is_cached
    assert change_of({"name": "location", "settings": {}}).applied(IN_BUCKET).latency_ms == 2
    resized = change_of({"name": "resize", "settings": {"short_side": 37}}).applied(IN_BUCKET)
    assert resized == replace(IN_BUCKET, short_side=37)


# Changes


def test_only_changes_that_are_possible_are_tried() -> None:
    def names(situation: Situation, **machine: object) -> list[str]:
        changes = possible_changes(situation, **{"cores": 2, "has_extension": True} | machine)
        return [change.name for change in changes]

    assert names(PLAIN) == ["prefetch", "batch", "transfer-ahead", "resize"]
    assert names(replace(PLAIN, threads=1, decoder="library")) == ["workers", *names(PLAIN), "decoder"]
    assert names(replace(PLAIN, decoder="library"), has_extension=False) == names(PLAIN)
    assert names(replace(PLAIN, transform="a:b")) == ["workers", *names(PLAIN)]
    assert names(replace(PLAIN, short_side=37, transfer_ahead=2)) == ["prefetch", "batch"]
    assert names(IN_BUCKET) == [*names(PLAIN), "cache", "location"]


def test_the_diagnose_command_has_the_arguments_that_a_user_would_type() -> None:
    words = diagnose_arguments(replace(IN_BUCKET, transform="a:b", device="cpu", model="resnet18"), "gs://b/d")
    assert " ".join(words) == (
        "diagnose gs://b/d --device cpu --model resnet18 --transform a:b --batch-size 8 --image-size 32 "
        "--threads 2 --processes 0 --prefetch-batches 2 --reads-in-flight 2 --decoder extension "
        "--transfer-ahead 0 --json"
    )
    assert "--model" not in diagnose_arguments(PLAIN, "x")


# The command line


def test_an_unknown_situation_is_refused_with_the_known_ones() -> None:
    done = subprocess.run([sys.executable, BENCHMARK, "--only", "nothing"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "invalid choice: 'nothing' (choose from disk-00" in done.stderr.replace("'disk", "disk")
