"""Finished datasets for the tests of what reads them: built once, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dataprep.build import build_shard
from dataprep.commands.progress import BuildProgress, VerifyProgress
from dataprep.driver import BuildRequest, run_build
from dataprep.images import ImagePolicy
from dataprep.plan import BuildOptions
from dataprep.verify import Report, verify


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
    run_build(request, lambda job, indexes: (build_shard(job, index) for index in indexes), BuildProgress(quiet=True))
    return str(output)


def verify_here(url: object, *, deep: bool = False, workers: int = 0) -> Report:
    """Verify in this process."""
    return verify(str(url), deep=deep, workers=workers, progress=VerifyProgress(quiet=True))


def kinds(report: Report) -> set[str]:
    return set(report.counts)


def details(report: Report) -> str:
    """All findings as one text, one a line."""
    return "\n".join(f"{finding.kind} {finding.where}: {finding.detail}" for finding in report.findings)


def folder(path: Path, name: str) -> Path:
    """A fresh place below a folder of temporary files."""
    return path / name / "dataset"
