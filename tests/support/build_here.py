"""Builds of ImageNet's originals in this process."""

from __future__ import annotations

from typing import Any

from dataprep.builder.driver import run_build
from dataprep.builder.plan import BuildOptions, BuildRequest
from dataprep.builder.recipe import build_shard
from dataprep.dataset.records import Manifest


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


def whole(asked: BuildRequest) -> Manifest:
    """Build it."""
    return run_build(asked, lambda job, indexes: (build_shard(job, index) for index in indexes), Quiet()).manifest


class Killed(BaseException):
    """The end of a process."""
