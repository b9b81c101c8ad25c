"""Names of a shard's files, made of its number only, so that adding shards later renames nothing."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.formats.tfrecord import tfds_name

FETCHED_FORMATS = ("webdataset", "tfrecord")
"""Formats in which fetched images are stored."""
MAX_SIDECAR_BYTES = 2 << 30
"""Maximum size of a sidecar that is read; the parquet file of 10,000 rows has 3 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardNames:
    """File names relative to the dataset's root, by a shard's position in the split."""

    samples: str
    """Name of the samples file, with {} for the shard's number."""
    sidecar: str
    """Name of the sidecars without `.parquet` or `_stats.json`, with {} for the shard's number."""
    digits: int
    """Minimum number of digits of a shard's number."""

    def samples_file(self, index: int) -> str:
        """Return the name of the samples file."""
        return self.samples.replace("{}", self._number(index))

    def parquet_file(self, index: int) -> str:
        """Return the name of the parquet file of all rows."""
        return self.sidecar.replace("{}", self._number(index)) + ".parquet"

    def stats_file(self, index: int) -> str:
        """Return the name of the file of statistics."""
        return self.sidecar.replace("{}", self._number(index)) + "_stats.json"

    def files(self, index: int) -> tuple[str, str, str]:
        """Return the names of a shard's three files."""
        return self.samples_file(index), self.parquet_file(index), self.stats_file(index)

    def _number(self, index: int) -> str:
        return f"{index:0{self.digits}d}"


def built_names(dataset: str, format_name: str, split: str, digits: int) -> ShardNames:
    """Return the names of the files in a build's shards."""
    samples = f"{split}/{{}}.tar" if format_name == "webdataset" else f"{tfds_name(dataset)}-{split}.tfrecord-{{}}"
    return ShardNames(samples=samples, sidecar=f"{split}/{{}}", digits=digits)
