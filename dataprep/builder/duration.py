"""Estimates how long the shards of a build take, from what a worker's work on a few of the images took. All is pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """What the work on some images took, in all."""

    images: int
    num_bytes: int
    """Bytes of the originals."""
    cpu_s: float
    """CPU time of reading, checking, encoding, digesting and, where it is tried, writing."""
    wait_s: float
    """Time that a worker waits for its reads, however many others there are."""
    transfer_s: float
    """Time that the network takes for the bytes, which all workers share; 0 on a disk."""
    reads_ahead: bool
    """Whether a worker reads the next images while it works on one."""
    sync_s: float | None = None
    """Time that the output's disk takes for what was written, which all workers share; None if nothing was written,
    so that neither this nor the CPU time of writing is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Duration:
    """Estimate of the time that the shards of a build take."""

    seconds: float
    reading_limits: bool
    """Whether reading takes longer than the cores do."""
    writing_limits: bool
    """Whether the output's disk takes longer than anything else."""


def build_duration(tried: Tried, images: int, *, shards: int, workers: int, cores: float) -> Duration:
    """Return how long a build takes if all of its images take as long as those that were tried.

    A shard is built by one worker, so at the end some workers may be without one.

    Args:
        tried: The images that were tried, at least one.
        images: Number of images to build.
        shards: Number of shards that hold them, at least one.
        workers: Number of workers.
        cores: Number of cores that the workers share.
    """
    rounds = -(-shards // workers)
    times, of_one_worker = images / tried.images, rounds / shards
    working_s, waiting_s = (times * each_s * of_one_worker for each_s in (tried.cpu_s, tried.wait_s))
    on_cores_s = max(working_s, times * tried.cpu_s / cores)
    transfer_s = times * tried.transfer_s
    sync_s = times * (tried.sync_s or 0.0)
    by_worker_s = max(working_s, waiting_s) if tried.reads_ahead else working_s + waiting_s
    without_disk_s = max(by_worker_s, on_cores_s, transfer_s)
    return Duration(
        seconds=max(without_disk_s, sync_s),
        reading_limits=max(waiting_s, transfer_s) > on_cores_s,
        writing_limits=sync_s > without_disk_s,
    )
