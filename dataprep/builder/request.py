"""The request for a build, and the progress that it reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dataprep.builder.plan import BuildOptions, Plan
from dataprep.dataset.records import ShardReceipt


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRequest:
    """What to build, from which source, to which output, and within which limits. A recipe that needs more has its own
    subclass."""

    options: BuildOptions
    source_url: str
    output_url: str
    max_reject_ratio: float
    """Share of a split's images that may be rejected, 0 to 1."""
    overwrite: bool = False


class Progress(Protocol):
    """Receiver of a build's progress reports."""

    def enumerating(self, split: str) -> None:
        """The originals of a split are being listed."""

    def reading(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """`done_bytes` of an original archive were listed or hashed."""

    def log(self, line: str) -> None:
        """Show the user a line about the originals that were found."""

    def planned(self, plan: Plan, done: set[int]) -> None:
        """The plan is stored; these shards are done already."""

    def shard_done(self, receipt: ShardReceipt) -> None:
        """One more shard is done."""

    def assembling(self) -> None:
        """All shards are done; index and manifest are being written."""
