"""Finished datasets for the tests of what reads them: built once, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.builder.images import ImagePolicy
from dataprep.builder.plan import BuildOptions, BuildRequest
from dataprep.commands.progress import VerifyProgress
from dataprep.verification.run import Report, verify
from tests.support.build_here import whole
from tests.support.faults import Damaged
from tests.support.shared import made_once, shared_folder

DATASETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "imagenet-webdataset": ("imagenet", "webdataset", {}),
    "imagenet-tfrecord": ("imagenet", "tfrecord", {}),
    "imagenet-imagefolder": ("imagenet", "imagefolder", {}),
    "coco-tfrecord": ("coco-dup5", "tfrecord", {}),
    "coco-five-times": ("coco-dup5", "webdataset", {"repeat": "physical"}),
    "coco-links": ("coco-dup5", "imagefolder", {"repeat": "physical"}),
    "coco-webdataset": ("coco-dup5", "webdataset", {}),
    "unchecked": ("imagenet", "webdataset", {"check": "none"}),
}
"""Dataset, format and options by name; `unchecked` holds images that cannot be decoded."""
CHECKED = tuple(name for name in DATASETS if name not in ("coco-webdataset", "unchecked"))
SHARDED = tuple(name for name in CHECKED if DATASETS[name][1] != "imagefolder")


def build_here(dataset: str, source: object, output: object, fmt: str, check: Any = "decode", **options: Any) -> str:
    """Build train, and of ImageNet val, in three shards each; the URL."""
    request = BuildRequest(
        options=BuildOptions(
            dataset=dataset,
            format=fmt,
            splits=("train", "val") if dataset == "imagenet" else ("train",),
            num_shards=3,
            images=ImagePolicy(check=check),
            allow_partial=True,
            **options,
        ),
        source_url=str(source),
        output_url=str(output),
        max_reject_ratio=1.0,
    )
    whole(request)
    return str(output)


def finished_dataset(name: str, originals: Mapping[str, Path], factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of DATASETS, built once in a run of the tests; only ever read."""
    dataset, fmt, options = DATASETS[name]
    source = originals[dataset.removesuffix("-dup5")]
    return made_once(
        shared_folder(factory) / "finished" / name, lambda folder: build_here(dataset, source, folder, fmt, **options)
    )


def verify_here(url: object, *, deep: bool = False, workers: int = 0, replicas: bool = False) -> Report:
    """Verify in this process."""
    return verify(str(url), deep=deep, workers=workers, progress=VerifyProgress(quiet=True), replicas=replicas)


def kinds(report: Report) -> set[str]:
    return set(report.counts)


def details(report: Report) -> str:
    """All findings as one text, one a line."""
    return "\n".join(f"{finding.kind} {finding.where}: {finding.detail}" for finding in report.findings)


def change_cell(copy: Damaged, file: str, column: str, value: object) -> None:
    """Another value in a column's first row."""
    done: list[bool] = []

    def change(table: pa.Table) -> pa.Table:
        if done:
            return table
        done.append(True)
        values = [value, *table.column(column).to_pylist()[1:]]
        at = table.column_names.index(column)
        return table.set_column(at, column, pa.array(values, table.schema.field(column).type))

    copy.change_table(file, change)


def column_values(copy: Damaged, column: str) -> list[Any]:
    """A column of the index of train."""
    return pq.read_table(copy.root / "index/train.parquet").column(column).to_pylist()
