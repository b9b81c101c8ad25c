"""Builds of ImageNet's originals in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dataprep.builder.driver import run_build
from dataprep.builder.plan import BuildOptions, BuildRequest
from dataprep.builder.recipe import BuildJob, build_shard
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.records import Manifest, ShardReceipt
from dataprep.storage import open_storage
from tests.support.adoption import upload
from tests.support.builds import FORMATS
from tests.support.shared import made_once


class Quiet:
    """Report nothing: nobody watches."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def request(
    originals: Any, output: object, fmt: str = "webdataset", dataset: str = "imagenet", **more: Any
) -> BuildRequest:
    """A request for val in three shards, unless further options say otherwise."""
    overwrite = more.pop("overwrite", False)
    usual = {"splits": ("val",), "num_shards": 3, "allow_partial": True}
    options = BuildOptions(dataset=dataset, format=fmt, **(usual | more))
    source = str(originals[dataset.partition("-")[0]])
    return BuildRequest(
        options=options, source_url=source, output_url=str(output), max_reject_ratio=1.0, overwrite=overwrite
    )


def in_formats(in_a_bucket: str, *names: str, **values: Sequence[object]) -> pytest.MarkDecorator:
    """Each format once, one of them in a bucket, the others on a disk; with a further value for each.

    Args:
        in_a_bucket: Format of the dataset in a bucket.
        names: Further arguments of the test.
        values: Values of `names` by format; without them all formats are taken.
    """
    rows = [
        (fmt, "bucket" if fmt == in_a_bucket else "disk", *values.get(fmt, ()))
        for fmt in FORMATS
        if fmt in values or not values
    ]
    return pytest.mark.parametrize(("fmt", "storage_url", *names), rows, indirect=["storage_url"])


class Killed(BaseException):
    """The end of a process."""


def in_this_process(job: BuildJob, indexes: Sequence[int]) -> Iterator[ShardReceipt]:
    """Build one shard after the other."""
    return (build_shard(job, index) for index in indexes)


def whole(asked: Any, progress: Any = None) -> Manifest:
    """Do what is requested: a build or a conversion."""
    return run_build(asked, in_this_process, progress or Quiet()).manifest


def standing(originals: Mapping[str, Path], url: object, fmt: str = "webdataset") -> Manifest:
    """Copy a whole dataset, of which all tests share one."""
    shared = made_once(
        originals["imagenet"].with_name(f"whole-{fmt}"), lambda folder: whole(request(originals, folder, fmt))
    )
    upload(shared, url) if "://" in str(url) else shutil.copytree(shared, str(url))
    manifest = read_manifest(open_storage(str(url)))
    assert manifest is not None
    return manifest


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
