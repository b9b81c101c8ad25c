"""The request for a build, and the progress that it reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dataprep.build.plan import BuildOptions, Plan
from dataprep.dataset.records import ShardReceipt


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRequest:
    """What to build, from where, to where, and within which limits; a recipe that needs more has a request of its own
    class."""

    options: BuildOptions
    source_url: str
    output_url: str
    max_reject_ratio: float
    """Share of a split's images that may be rejected, 0 to 1."""
    overwrite: bool = False


class Progress(Protocol):
    """Progress of a build, as it reports it."""

    def enumerating(self, split: str) -> None:
        """The originals of a split are being listed."""

    def reading(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """This much of an original archive was walked or hashed."""

    def planned(self, plan: Plan, done: set[int]) -> None:
        """The plan is stored; these shards are done already."""

    def shard_done(self, receipt: ShardReceipt) -> None:
        """One more shard is done."""

    def assembling(self) -> None:
        """All shards are done; index and manifest are being written."""
