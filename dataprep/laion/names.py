"""What the files of a shard are called: by its number alone, so that what a later run adds renames nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardNames:
    """Names relative to the dataset's root, by a shard's place in the split."""

    samples: str
    """With {} for the number."""
    beside: str
    """Likewise, without what parquet and stats add."""
    digits: int
    """Of a number, at least."""
    offset: int = 0
    """What a shard's number is more than its place."""

    def samples_file(self, index: int) -> str:
        """The samples' file."""
        return self.samples.replace("{}", self._number(index))

    def parquet_file(self, index: int) -> str:
        """The file of all rows beside it."""
        return self.beside.replace("{}", self._number(index)) + ".parquet"

    def stats_file(self, index: int) -> str:
        """The file of counts beside it."""
        return self.beside.replace("{}", self._number(index)) + "_stats.json"

    def _number(self, index: int) -> str:
        return f"{index + self.offset:0{self.digits}d}"


def built_names(format_name: str, split: str, digits: int) -> ShardNames:
    """Those of a build."""
    samples = f"{split}/{{}}.tar" if format_name == "webdataset" else f"laion-{split}.tfrecord-{{}}"
    return ShardNames(samples=samples, beside=f"{split}/{{}}", digits=digits)
