"""Causes of a slow run that are in no list of the diagnosis, as plain values; `planting` makes them real."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Outside:
    """What slows a training run from outside its loader. A field with its default value plants nothing."""

    disk_bytes_per_s: float | None = None
    """Bandwidth of the local disk; the dataset is dropped from the page cache all the time."""
    disk_reads_per_s: float | None = None
    """Requests of the local disk in a second; the dataset is dropped from the page cache all the time."""
    disk_neighbours: int = 0
    """Number of other processes that read the same limited disk as fast as they can."""
    paged_out_bytes_per_s: float | None = None
    """Rate at which the memory of the run is moved to a swap file, as on a machine that has too little."""
    cores: float | None = None
    """CPU time that the run may use in a second (a quota, not fewer cores)."""
    pinned_to: int | None = None
    """Number of cores to which a launcher has pinned the run."""
    omp_threads: int | None = None
    """Threads of OpenMP in the training loop."""
    stolen_share: float | None = None
    """Share of every core that a process of real-time priority takes."""
    stolen_period_ms: float = 20.0
    neighbours: int = 0
    """Number of other processes that use the same cores."""
    neighbour: str = "loop"
    """What each of them does: a program of `neighbours.PROGRAMS`."""
    neighbour_nice: int = 0
    """Their nice value."""
    connection_bytes_per_s: float | None = None
    """Bandwidth that a proxy before the bucket gives to each connection."""
    proxy_bytes_per_s: float | None = None
    """Bandwidth of that proxy, for all connections together."""

    @property
    def is_disk_slow(self) -> bool:
        """Whether the local disk is limited."""
        return self.disk_bytes_per_s is not None or self.disk_reads_per_s is not None

    @property
    def is_contended(self) -> bool:
        """Whether other programs use cores of the run, which it can see."""
        return self.neighbours > 0 or self.stolen_share is not None
