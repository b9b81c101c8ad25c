"""`dataprep adopt`: an index and a manifest for data that other tools wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

import click

from dataprep.adoption import (
    ADOPTABLE,
    NO_LABELS,
    Adoption,
    AdoptRequest,
    Found,
    adopt,
    find,
    read_class_names,
    with_class_names,
)
from dataprep.adoption.shards import ReadJob, read_first
from dataprep.arguments import StrictCommand
from dataprep.commands.options import json_option, workers_option, workers_stall_option
from dataprep.commands.progress import ImageProgress
from dataprep.dataset.adopted import adopted_fields, is_adopted, open_linked
from dataprep.dataset.records import labelled
from dataprep.errors import UsageError
from dataprep.messages import counted, described_fields, human_bytes, of_images, printable

EPILOG = f"""\b
Examples:
  dataprep adopt /data/imagenet                         train/<class>/*.JPEG and val/<class>/*.JPEG
  dataprep adopt gs://bucket/cc3m --index ~/cc3m-index  img2dataset output that may not be written to
  dataprep adopt ~/tensorflow_datasets/oxford_flowers102/2.1.1
  dataprep adopt shards --split 'train=*-train-*.tar' --split 'val=*-val-*.tar' --shuffled
  dataprep adopt food101 --class-names food101/classnames.txt
  dataprep adopt photos --index photos-index --labels {NO_LABELS} --digest
  dataprep adopt gs://bucket/cc3m --dry-run --json | jq '.splits[].shards'

\b
Exit codes: 0 adopted, now or before; 1 a disk or bucket failed; 2 nothing to adopt, or damaged data.
"""


class AdoptProgress(ImageProgress):
    """Shows the progress that `dataprep.adoption` reports."""

    def started(self, shards: int, num_bytes: int) -> None:
        self._shards, self._read_shards, self._total_bytes, self._read_bytes = shards, 0, num_bytes, 0

    def shard_done(self, samples: int, num_bytes: int) -> None:
        self._read_shards += 1
        self._read_bytes += num_bytes
        self.reading(f"{self._read_shards:,} of {counted(self._shards, 'shard')}", self._read_bytes, self._total_bytes)


@click.command("adopt", cls=StrictCommand, epilog=EPILOG)
@click.argument("url", metavar="URL")
@click.option(
    "--index",
    "index_url",
    metavar="URL",
    help="Folder or gs:// prefix for index and manifest.  [default: next to the data]",
)
@click.option(
    "--split",
    "splits",
    multiple=True,
    metavar="NAME=PATTERN",
    help="Files of a split, as a pattern of names or a folder; may be repeated. To split files, convert the adopted "
    "data with --val-fraction.  [default: by their names]",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(ADOPTABLE),
    default="auto",
    show_default=True,
    help="Format of the data; auto: recognise it by the files.",
)
@click.option(
    "--labels",
    metavar="FIELD",
    help="Tar member, key of the .json member, or feature that holds the label, an integer or the text of a class; "
    f"{NO_LABELS}: no labels.  [default: cls, label, ...]",
)
@click.option(
    "--class-names",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Text file with a name for each class, for labels that are integers: the first line is class 0.  [default: "
    "the integers]",
)
@click.option("--shuffled", is_flag=True, help="State that the samples are in random order already.")
@click.option("--digest", is_flag=True, help="Read every image, and record its CRC32C in the index.")
@workers_option
@workers_stall_option
@click.option("--overwrite", is_flag=True, help="Read the data again, and replace the existing index.")
@click.option("--dry-run", is_flag=True, help="Print what was found, and what the first shard holds; write nothing.")
@json_option
def command(
    url: str,
    index_url: str | None,
    splits: tuple[str, ...],
    format_name: str,
    labels: str | None,
    class_names: Path | None,
    shuffled: bool,
    digest: bool,
    workers: int,
    stall_minutes: float,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Index the data at URL, which other tools wrote, so that the loaders read them as they are.

    The data may be an image folder (<class>/* or {train,val}/<class>/*; links are followed), tars of webdataset, a
    TFDS directory, or the output of img2dataset, on disk or in a bucket. On disk no image is read without --digest;
    shards in a bucket are streamed. Afterwards TFDS can read img2dataset's TFRecords.
    """
    request = AdoptRequest(
        url=url,
        index_url=index_url,
        splits=tuple(_split(text) for text in splits),
        format=format_name,
        labels=labels,
        class_names=read_class_names(class_names) if class_names is not None else (),
        shuffled=shuffled,
        digest=digest,
        overwrite=overwrite,
    )
    with AdoptProgress(quiet=as_json, stall_s=60 * stall_minutes) as progress:
        if dry_run:
            progress.step("listing")
            data = open_linked(url)
            found = find(data, format_name=format_name, splits=request.splits, labels=labels)
            found = with_class_names(found, request.class_names, labels)
            summary = _found_summary(url, found)
            if not found.images:
                progress.step("reading the first shard")
                job = ReadJob(data_url=data.url, found=found, labels=labels, digest=False)
                summary["first_shard"] = _first_shard(job)
        else:
            adoption = adopt(request, progress, workers=workers)
            if adoption.changes:
                raise UsageError(
                    f"{adoption.url}: the data have changed since they were adopted ({adoption.changes}); read them "
                    "again with --overwrite"
                )
            summary = _summary(adoption)
    click.echo(json.dumps(summary) if as_json else "\n".join(_lines(summary)))


def _split(text: str) -> tuple[str, str]:
    name, equals, pattern = text.partition("=")
    if not (name and equals and pattern):
        raise UsageError(f"--split {text}: expected NAME=PATTERN, such as train=train-*.tar")
    return name, pattern


class _SplitSummary(TypedDict):
    """One split, as `--json` prints it."""

    name: str
    samples: NotRequired[int]
    shards: int
    bytes: int
    rejected: NotRequired[dict[str, int]]


class _FirstShard(TypedDict):
    """What the first shard holds, as `--dry-run --json` prints it."""

    file: str
    samples: int
    labels: str
    """`text`, `number` or `none`."""
    labelled: int
    """Number of its samples that have a label."""
    fields: dict[str, int]
    """Number of its samples that have each field beside the image."""


class _Summary(TypedDict):
    """What was found, or is adopted, as `--json` prints it."""

    url: str
    name: NotRequired[str]
    kind: str
    format: str
    revision: NotRequired[int]
    already: NotRequired[bool]
    classes: NotRequired[int]
    labelled: NotRequired[int]
    """Number of samples that have a label."""
    fields: NotRequired[dict[str, int]]
    """Number of samples that have each field beside the image."""
    notes: NotRequired[tuple[str, ...]]
    splits: list[_SplitSummary]
    first_shard: NotRequired[_FirstShard]


def _found_summary(url: str, found: Found) -> _Summary:
    shards = Counter(shard.split for shard in found.shards)
    num_bytes: Counter[str] = Counter()
    for shard in found.shards:
        num_bytes[shard.split] += shard.num_bytes
    splits: list[_SplitSummary] = [{"name": name, "shards": shards[name], "bytes": num_bytes[name]} for name in shards]
    return {"url": url, "kind": found.kind, "format": found.format, "splits": splits}


def _first_shard(job: ReadJob) -> _FirstShard:
    first = read_first(job)
    form = "text" if first.kind.texts else "number" if first.labels else "none"
    file = job.found.shards[0].name
    return {
        "file": file,
        "samples": first.samples,
        "labels": form,
        "labelled": first.labels.total(),
        "fields": dict(first.fields),
    }


def _summary(adoption: Adoption) -> _Summary:
    manifest = adoption.manifest
    return {
        "url": adoption.url,
        "name": manifest.name,
        "kind": manifest.options["adopted"]["kind"] if is_adopted(manifest) else "dataprep",
        "format": manifest.format,
        "revision": manifest.revision,
        "already": adoption.already,
        "classes": len(manifest.classes),
        "labelled": labelled(manifest),
        "fields": adopted_fields(manifest),
        "notes": adoption.notes,
        "splits": [
            {
                "name": split.name,
                "samples": split.samples,
                "shards": len(split.shards),
                "bytes": split.num_bytes,
                "rejected": split.rejected,
            }
            for split in manifest.splits
        ],
    }


def _lines(summary: _Summary) -> Sequence[str]:
    classes = f", {counted(summary['classes'], 'class')}" if summary.get("classes") else ""
    already = " exists already; read it again with --overwrite" if summary.get("already") else ""
    lines = [printable(f"{summary['url']}: {summary['kind']}{classes}{already}")]
    for split in summary["splits"]:
        samples = f"{counted(split['samples'], 'image')} in " if "samples" in split else ""
        line = f"  {split['name']}: {samples}{counted(split['shards'], 'shard')}, {human_bytes(split['bytes'])}"
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in split.get("rejected", {}).items())
        lines.append(printable(f"{line}; left out: {left_out}" if left_out else line))
    total = sum(split.get("samples", 0) for split in summary["splits"])
    if summary.get("classes") and summary["labelled"] < total:
        lines.append(f"  labels: {of_images(summary['labelled'], total)} have one")
    if fields := summary.get("fields"):
        lines.append(printable(f"  fields: {described_fields(fields, total)}"))
    if first := summary.get("first_shard"):
        named = described_fields(first["fields"], first["samples"]) or "none"
        samples = counted(first["samples"], "image")
        labels = first["labels"]
        if 0 < first["labelled"] < first["samples"]:
            labels += f" ({of_images(first['labelled'], first['samples'])})"
        lines.append(printable(f"  in {first['file']}: {samples}; labels: {labels}; fields: {named}"))
    return lines
