"""A planted situation, and the single changes that might help in it, as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.situations.outside import Outside
from loaders.config import EVALUATION_CROP

NONE = "none"
"""Name of the best change if no change helps."""
READS_IN_FLIGHT = 128
"""Reads in flight of a loader from a bucket with default settings."""
NEAR_MS = 2.0
"""Latency of a request to a bucket in the region of the machine."""
LOADER_SETTINGS = (
    *("batch_size", "image_size", "threads", "processes"),
    *("prefetch_batches", "reads_in_flight", "decoder"),
)
"""Fields of a situation that are settings of a loader by the same name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """Dataset, place, device, settings and competing processes of a training run."""

    id: str
    cause: str
    """Description of the planted cause, for people."""
    is_real: bool
    """Whether the cause is a real one; otherwise a device or transform only waits."""
    dataset: str = "photos"
    """Name of a source in `datasets.SOURCES`."""
    format: str = "webdataset"
    short_side: int | None = None
    """Short side to which the dataset was resized when it was built; None: it was not resized."""
    latency_ms: float | None = None
    """Latency of every request to the bucket; None: the dataset is on a disk."""
    bandwidth_bytes_per_s: float | None = None
    """Bandwidth from the bucket; None: it is not limited."""
    is_cached: bool = False
    """Whether the bucket's bytes are cached in a folder on a local disk."""
    device: str
    """Name of the device: `cpu`, or `simulated:…`."""
    model: str = ""
    """Name of the model that runs on the device `cpu`."""
    batch_size: int = 32
    image_size: int = 224
    threads: int = 1
    processes: int = 0
    prefetch_batches: int = 3
    reads_in_flight: int | None = None
    decoder: str = "extension"
    transform: str = ""
    """Transform of the loader as `MODULE:NAME`; empty: none."""
    transfer_ahead: int = 0
    """Number of batches that are sent to the device before they are needed."""
    compute_threads: int | None = None
    """Number of threads with which the model computes, if it is changed; None: as many as were planted."""
    outside: Outside | None = None
    """Causes that are in no list of the diagnosis; None: there are none."""

    @property
    def is_in_bucket(self) -> bool:
        """Whether bytes come over a network."""
        return self.latency_ms is not None

    @property
    def is_contended(self) -> bool:
        """Whether other programs use the cores of the run."""
        return self.outside is not None and self.outside.is_contended

    @property
    def short_side_needed(self) -> int:
        """Short side of stored images that crops of this size need, pixels."""
        return round(self.image_size / EVALUATION_CROP)

    @property
    def images_under_way(self) -> int:
        """Number of requests for one image each that are in flight while the run waits for the loader."""
        return min(self.prefetch_batches * self.batch_size, self.reads_in_flight or READS_IN_FLIGHT)

    @property
    def batches_per_burst(self) -> int:
        """Number of batches that may arrive together, because reads that began together share the link."""
        return self.prefetch_batches if self.is_in_bucket else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change that could help in a situation."""

    name: str
    settings: Mapping[str, Any]
    """New values of fields of the situation."""

    def applied(self, situation: Situation) -> Situation:
        """Return the situation after the change."""
        return replace(situation, **self.settings)

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.name} {values}".rstrip()


LOCATION = Change(name="location", settings={"latency_ms": NEAR_MS, "bandwidth_bytes_per_s": None})
CACHE = Change(name="cache", settings={"is_cached": True})


def possible_changes(situation: Situation, *, cores: int, has_extension: bool) -> list[Change]:
    """Return all single changes that can be made, whether they help or not; several may have the same name.

    Args:
        cores: Processor cores of this machine.
        has_extension: Whether the decoder `extension` was built.
    """
    changes = [Change(name="workers", settings={"threads": cores, "processes": 0})]
    if situation.transform:
        changes.append(Change(name="workers", settings={"threads": 1, "processes": max(2, cores)}))
    changes += [
        _compute_threads(count)
        for count in sorted({1, max(1, cores // 2), cores})
        if count < _model_threads(situation, cores)
    ]
    changes.append(_prefetch(situation))
    changes.append(Change(name="batch", settings={"batch_size": 4 * situation.batch_size}))
    changes.append(Change(name="transfer-ahead", settings={"transfer_ahead": 2}))
    if situation.short_side is None:
        changes.append(Change(name="resize", settings={"short_side": situation.short_side_needed}))
    if has_extension:
        changes.append(Change(name="decoder", settings={"decoder": "extension"}))
    if situation.is_in_bucket:
        changes += [CACHE, LOCATION]
    return [change for change in changes if change.applied(situation) != situation]


def usual_threads(cores: int) -> int:
    """Return the number of threads of a model where no other one is planted.

    Threads of a model wait for each other: on cores that also decode, two are a tenth as fast as one.
    """
    return max(1, cores // 2)


def _model_threads(situation: Situation, cores: int) -> int:
    if not situation.model:
        return 0
    planted = situation.outside.omp_threads if situation.outside is not None else None
    return planted or usual_threads(cores)


def _compute_threads(count: int) -> Change:
    return Change(name="compute-threads", settings={"compute_threads": count})


def _prefetch(situation: Situation) -> Change:
    """Return the change that has at least four times as many images in flight."""
    wanted = 4 * situation.images_under_way
    settings = {"prefetch_batches": max(situation.prefetch_batches, -(-wanted // situation.batch_size))}
    if situation.is_in_bucket:
        settings["reads_in_flight"] = max(situation.reads_in_flight or READS_IN_FLIGHT, wanted)
    return Change(name="prefetch", settings=settings)


def change_of(fix: Mapping[str, Any]) -> Change:
    """Return the change that an entry of `fixes` in the document of `dataprep diagnose` describes."""
    known = {"location": LOCATION, "cache": CACHE}
    if fix["name"] in known:
        return known[fix["name"]]
    fields = Situation.__dataclass_fields__.keys()
    return Change(name=fix["name"], settings={key: value for key, value in fix["settings"].items() if key in fields})


def loader_settings(situation: Situation) -> dict[str, Any]:
    """Return the settings of `open_loader`, except for the cache and the transform."""
    return {name: getattr(situation, name) for name in LOADER_SETTINGS}


def diagnose_arguments(situation: Situation, url: str) -> list[str]:
    """Return the arguments of `dataprep diagnose` that a user in this situation would type."""
    words = ["diagnose", url, "--device", situation.device]
    named: dict[str, Any] = {"--model": situation.model, "--transform": situation.transform}
    named |= {f"--{name.replace('_', '-')}": getattr(situation, name) for name in LOADER_SETTINGS}
    named["--transfer-ahead"] = situation.transfer_ahead
    for option, value in named.items():
        if value not in ("", None):
            words += [option, str(value)]
    return [*words, "--json"]


def to_document(situation: Situation) -> dict[str, Any]:
    """Return a situation as JSON values."""
    document: dict[str, Any] = json.loads(json.dumps(asdict(situation)))
    return document
