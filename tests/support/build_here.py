"""Builds of ImageNet's originals in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dataprep.builder.driver import run_build
from dataprep.builder.plan import BuildOptions, BuildRequest
from dataprep.builder.recipe import BuildJob, build_shard
from dataprep.dataset.records import Manifest, ShardReceipt


class Quiet:
    """Report nothing: nobody watches."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def request(originals: Any, output: object, fmt: str = "webdataset", **more: Any) -> BuildRequest:
    """A request for val in three shards."""
    overwrite = more.pop("overwrite", False)
    options = BuildOptions(
        dataset="imagenet", format=fmt, num_shards=3, **({"splits": ("val",), "allow_partial": True} | more)
    )
    source = str(originals["imagenet"])
    return BuildRequest(
        options=options, source_url=source, output_url=str(output), max_reject_ratio=1.0, overwrite=overwrite
    )


class Killed(BaseException):
    """The end of a process."""


def in_this_process(job: BuildJob, indexes: Sequence[int]) -> Iterator[ShardReceipt]:
    """Build one shard after the other."""
    return (build_shard(job, index) for index in indexes)


def whole(asked: BuildRequest) -> Manifest:
    """Build it."""
    return run_build(asked, in_this_process, Quiet()).manifest


def interrupted(asked: BuildRequest, shard: int = 0) -> BuildJob:
    """Build one shard in a process that is killed then; what a worker got."""
    jobs: list[BuildJob] = []

    def engine(job: BuildJob, indexes: Sequence[int]) -> Iterator[ShardReceipt]:
        jobs.append(job)
        yield build_shard(job, shard)
        raise Killed

    with pytest.raises(Killed):
        run_build(asked, engine, Quiet())
    return jobs[0]
