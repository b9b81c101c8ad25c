"""The one transform of a build: shard indexes in, receipts out. References and images never travel between workers."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from dataprep.builder.job import BuildJob, build_shard
from dataprep.dataset.records import ShardReceipt


class BuildShards(beam.PTransform):  # type: ignore[misc]
    """PCollection[int] of shard indexes -> PCollection[str] of the files that exist afterwards.

    The graph is linear and without tagged outputs, so that every runner that loses no elements can run it. An element
    is retried as a whole, which build_shard allows.
    """

    def __init__(self, job: BuildJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, indexes: beam.PCollection[int]) -> beam.PCollection[str]:
        return (
            indexes
            | "SpreadShards" >> beam.Reshuffle()  # int
            | "BuildShard" >> beam.ParDo(_BuildShardFn(self._job))  # str
        )


class _BuildShardFn(beam.DoFn):  # type: ignore[misc]
    def __init__(self, job: BuildJob) -> None:
        self._job = job

    def process(self, index: int) -> Iterator[str]:
        receipt: ShardReceipt = build_shard(self._job, index)
        yield receipt.file


def build_graph(pipeline: beam.Pipeline, job: BuildJob, indexes: list[int]) -> beam.PCollection[str]:
    """Build the whole graph of a build; the driver merges the receipts when it has run."""
    return (
        pipeline
        | "ShardIndexes" >> beam.Create(indexes, reshuffle=False)  # int
        | "BuildShards" >> BuildShards(job)  # str
    )
