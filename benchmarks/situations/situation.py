"""A planted situation, and the single changes that might help in it. All of it is plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from loaders.config import EVALUATION_CROP

NONE = "none"
"""The name of the change that is best where no change helps."""
READS_IN_FLIGHT = 128
"""Reads in flight of a loader from a bucket with default settings."""
NEAR_MS = 2.0
"""A request to a bucket beside the machine."""
LOADER_SETTINGS = (
    *("batch_size", "image_size", "threads", "processes"),
    *("prefetch_batches", "reads_in_flight", "decoder"),
)
"""Fields of a situation that are settings of a loader by the same name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """What is trained on, from where, by which settings, beside whom."""

    id: str
    cause: str
    """What is planted, for people."""
    is_real: bool
    """Whether the cause is one of the real world, or a device's or transform's waiting."""
    dataset: str = "photos"
    """Name of a source in `datasets.SOURCES`."""
    format: str = "webdataset"
    short_side: int | None = None
    """To which the dataset was resized when it was built; None: it was not."""
    latency_ms: float | None = None
    """Latency of every request to the bucket; None: the dataset is on a disk."""
    bandwidth_bytes_per_s: float | None = None
    """From the bucket; None: all that there is."""
    is_cached: bool = False
    """The bucket's bytes lie in a folder of a local disk."""
    device: str
    """`cpu`, or `simulated:…`."""
    model: str = ""
    """For `cpu`."""
    batch_size: int = 32
    image_size: int = 224
    threads: int = 1
    processes: int = 0
    prefetch_batches: int = 3
    reads_in_flight: int | None = None
    decoder: str = "extension"
    transform: str = ""
    """`MODULE:NAME`"""
    transfer_ahead: int = 0
    """Batches that are sent to the device before they are needed."""
    competitors: int = 0
    """Other processes that each would keep a core busy."""

    @property
    def is_in_bucket(self) -> bool:
        """Whether bytes come over a network."""
        return self.latency_ms is not None

    @property
    def short_side_needed(self) -> int:
        """Short side of stored images that crops of this size need, pixels."""
        return round(self.image_size / EVALUATION_CROP)

    @property
    def images_under_way(self) -> int:
        """Requests to the bucket that the loader has in flight, one image each, while it is waited for."""
        return min(self.prefetch_batches * self.batch_size, self.reads_in_flight or READS_IN_FLIGHT)

    @property
    def batches_per_burst(self) -> int:
        """Batches that may come at nearly the same time: reads that began together share the link, and end together."""
        return self.prefetch_batches if self.is_in_bucket else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing that could be done about a situation."""

    name: str
    settings: Mapping[str, Any]
    """Fields of a situation."""

    def applied(self, situation: Situation) -> Situation:
        """The situation after it."""
        return replace(situation, **self.settings)

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.name} {values}".rstrip()


LOCATION = Change(name="location", settings={"latency_ms": NEAR_MS, "bandwidth_bytes_per_s": None})
CACHE = Change(name="cache", settings={"is_cached": True})


def possible_changes(situation: Situation, *, cores: int, has_extension: bool) -> list[Change]:
    """All single changes that can be made, whether they help or not; several may have one name.

    Args:
        cores: Processor cores of this machine.
        has_extension: Whether the decoder `extension` was built.
    """
    changes = [Change(name="workers", settings={"threads": cores, "processes": 0})]
    if situation.transform:
        changes.append(Change(name="workers", settings={"threads": 1, "processes": max(2, cores)}))
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


def _prefetch(situation: Situation) -> Change:
    """At least four times as many images under way."""
    wanted = 4 * situation.images_under_way
    settings = {"prefetch_batches": max(situation.prefetch_batches, -(-wanted // situation.batch_size))}
    if situation.is_in_bucket:
        settings["reads_in_flight"] = max(situation.reads_in_flight or READS_IN_FLIGHT, wanted)
    return Change(name="prefetch", settings=settings)


def change_of(fix: Mapping[str, Any]) -> Change:
    """What an entry of `fixes` in the document of `dataprep diagnose` asks for."""
    known = {"location": LOCATION, "cache": CACHE}
    if fix["name"] in known:
        return known[fix["name"]]
    fields = Situation.__dataclass_fields__.keys()
    return Change(name=fix["name"], settings={key: value for key, value in fix["settings"].items() if key in fields})


def loader_settings(situation: Situation) -> dict[str, Any]:
    """For `open_loader`, its cache and its transform apart."""
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
    """JSON values."""
    document: dict[str, Any] = json.loads(json.dumps(asdict(situation)))
    return document
