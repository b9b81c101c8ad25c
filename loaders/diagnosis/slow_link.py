"""A link to a bucket that is too slow for a run: its reads get no answer in time, so that the run ends.

Reads that share a slow link wait for each other, and with many of them some wait longer than a run waits for an answer.
Then the run is measured with fewer reads at once, which a narrow link carries as fast. Where a read gets no answer in
time even alone, the run is measured with a longer deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dataprep.errors import UnansweredError
from dataprep.messages import counted
from loaders.config import LoaderConfig
from loaders.diagnosis.ahead import ROOM
from loaders.diagnosis.findings import Changes
from loaders.diagnosis.observed_run import RunSetup, images_in_flight
from loaders.diagnosis.options import DIAGNOSE
from loaders.diagnosis.rehearsal import places_in
from loaders.fetch.index import with_deadline

if TYPE_CHECKING:
    from dataprep.storage.base import Storage

LONGER = 4
"""Factor by which the deadline of a read is raised."""
MOST_DEADLINE_S = 20.0
"""Deadline beyond which it is not raised: a server that answers later than that is taken for one that is gone."""
LEFT_BEHIND_S = 30.0
"""Longest wait for the reads of a loader that was closed: until they end, they take the link from the next run."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run to measure: as it is set up, or over a slow link with fewer reads in flight or a longer deadline."""

    setup: RunSetup
    note: str = ""
    """Sentences that say what differs from the run as it is set up, and why; empty if nothing does."""
    is_narrow: bool = False
    """Whether fewer reads are in flight: more of them at once would get no answer in time."""
    batches: int = 1
    """Batches of this run that have as many images as one of the run as it is set up."""
    cache: str = ""
    """Sentence that says how a run with a cache was measured; empty for one without."""


def gentler(asked: RunSetup, tried: RunSetup) -> Attempt | None:
    """Return the run to measure after one whose reads got no answer in time; None if there is no gentler one.

    Args:
        asked: The run as it is set up.
        tried: The run that was measured last: that one, or a gentler one.

    Raises:
        DataprepError: A read fails for another reason.
    """
    wait_for_reads_left_behind()
    config, storage = tried.config, _answering(tried)
    if storage is not None:
        reads = _half(images_in_flight(storage, config), config.processes)
        config = replace(config, reads_in_flight=reads or None)
    else:
        config = replace(config, deadline_s=LONGER * config.deadline_s)
        storage = _answering(replace(tried, config=config)) if config.deadline_s <= MOST_DEADLINE_S else None
        reads = 0 if storage is None else images_in_flight(storage, config)
    if storage is None or not reads:
        return None
    asked_reads = images_in_flight(storage, asked.config)
    if reads < asked_reads and asked.options is DIAGNOSE:
        config = replace(config, batch_size=_enough_images(asked.config, reads))
    note = " ".join(_sentences(asked, config, asked_reads, reads))
    batches = asked.config.batch_size // config.batch_size
    return Attempt(replace(asked, config=config), note, is_narrow=reads < asked_reads, batches=batches)


def wait_for_reads_left_behind() -> None:
    """Wait until the reads of loaders that were closed have ended, or LEFT_BEHIND_S have passed."""
    until_s = time.monotonic() + LEFT_BEHIND_S
    for thread in threading.enumerate():
        if thread.name.startswith("loader-read"):
            thread.join(max(0.0, until_s - time.monotonic()))


def _answering(setup: RunSetup) -> Storage | None:
    """Return the storage of a run if the read of one image gets an answer in time while nothing else is read."""
    try:
        with setup.open() as loader:
            storage, mean_bytes = loader.dataset.storage, int(loader.index.mean_image_bytes())
            place = places_in(loader.dataset, loader.index)[0]
            num_bytes = min(max(1, mean_bytes), place.most_bytes)
            with_deadline(storage, setup.config.deadline_s).read_range(place.file, place.offset, num_bytes)
    except UnansweredError:
        return None
    return storage


def _half(reads: int, processes: int) -> int:
    """Return half of the reads in flight, as many for each process; 0 if each has one already."""
    processes = max(1, processes)
    return reads // processes // 2 * processes


def _enough_images(config: LoaderConfig, reads: int) -> int:
    """Return the smallest batch, by halves, of which those ahead have room for some reads: with the whole one it takes
    a slow link minutes until the first step."""
    batch_size = config.batch_size
    while batch_size % 2 == 0 and config.prefetch_batches * batch_size // 2 >= ROOM * reads:
        batch_size //= 2
    return batch_size


def _sentences(asked: RunSetup, config: LoaderConfig, asked_reads: int, reads: int) -> Iterator[str]:
    if config.deadline_s > asked.config.deadline_s:
        yield (
            f"Even alone, a read gets no answer within {asked.config.deadline_s:g} s, which ends the run: it was "
            f"measured with a deadline of {config.deadline_s:g} s (deadline_s={config.deadline_s:g})."
        )
    if reads < asked_reads:
        settings = Changes(reads_in_flight=reads)
        typed = asked.typed(settings) if asked.can_set(settings) else f"reads_in_flight={reads}"
        smaller = config.batch_size < asked.config.batch_size
        batches = f", in batches of {counted(config.batch_size, 'image')}" if smaller else ""
        yield (
            f"With {asked_reads} reads in flight some get no answer within {config.deadline_s:g} s, which ends the "
            f"run: it was measured with {reads} ({typed}){batches}."
        )
