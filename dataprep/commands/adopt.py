"""`dataprep adopt`: an index and a manifest for data that other tools wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from dataprep.adoption import NO_LABELS, Adoption, AdoptRequest, find, read_class_names
from dataprep.adoption import adopt as adopt_data
from dataprep.adoption.shards import ReadJob, read_first
from dataprep.arguments import LABELS, OTHER, READ, WRITE, Pairs, Place, command_of, function_of, option, request
from dataprep.commands.progress import ImageProgress, LocalRun, Viewer, people
from dataprep.dataset.adopted import adopted_fields, is_adopted, open_linked
from dataprep.dataset.opened import Dataset, Planned
from dataprep.dataset.records import labelled
from dataprep.errors import UsageError
from dataprep.messages import counted, described_fields, human_bytes, of_images, printable
from dataprep.sources.base import name_from

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
Exit codes: 0 adopted, now or earlier; 1 a disk or bucket failed; 2 nothing to adopt, or damaged data.
"""


class AdoptProgress(ImageProgress):
    """Shows the progress that `dataprep.adoption` reports."""

    def started(self, shards: int, num_bytes: int) -> None:
        self._shards, self._read_shards, self._total_bytes, self._read_bytes = shards, 0, num_bytes, 0

    def shard_done(self, samples: int, num_bytes: int) -> None:
        self._read_shards += 1
        self._read_bytes += num_bytes
        self.reading(f"{self._read_shards:,} of {counted(self._shards, 'shard')}", self._read_bytes, self._total_bytes)


@request
class Adopt(LocalRun):
    """Index the data at URL that other tools wrote, so that loaders can read it as it is.

    The data may be an image folder (<class>/* or {train,val}/<class>/*; links are followed), webdataset tars, a TFDS
    directory, or img2dataset output, on disk or in a bucket. On disk, images are read only with `digest`; shards in a
    bucket are streamed. Afterwards, TFDS can read img2dataset's TFRecords.
    """

    url: Place = option(
        "Folder or prefix (gs://, s3://, az://, https://, hf://) of the data.", metavar="URL", kw_only=False, group=READ
    )
    index: Place | None = option(
        "Folder or gs:// prefix for the index and manifest.",
        default=None,
        metavar="URL",
        shown="next to the data",
        group=WRITE,
    )
    split: Pairs = option(
        "Files of one split, given as a file-name pattern or a folder; may be repeated. To split files, convert the "
        "adopted data with --val-fraction.",
        default_factory=dict,
        metavar="NAME=PATTERN",
        example="train=train-*.tar",
        shown="by file name",
        group=LABELS,
    )
    format: Literal["auto", "imagefolder", "webdataset", "tfrecord"] = option(
        "Format of the data; auto: detect it from the files.", default="auto", group=READ
    )
    labels: str | None = option(
        f"Tar member, key of the .json member, or feature with the label, an integer or a class name; {NO_LABELS}: no "
        "labels.",
        default=None,
        metavar="FIELD",
        shown="cls, label, ...",
        group=LABELS,
    )
    class_names: Path | str | None = option(
        "Text file with a class name on each line, for integer labels; the first line is class 0.",
        default=None,
        metavar="FILE",
        shown="the integers",
        group=LABELS,
    )
    shuffled: bool = option("Declare that the samples are already in random order.", default=False, group=READ)
    digest: bool = option("Read every image, and record its CRC32C in the index.", default=False, group=READ)
    overwrite: bool = option("Read the data again, and replace the existing index.", default=False, group=WRITE)
    dry_run: bool = option(
        "Print what was found, and what the first shard holds; write nothing.", default=False, group=OTHER
    )

    def adoption(self) -> AdoptRequest:
        """Return the request of `dataprep.adoption`."""
        names = () if self.class_names is None else read_class_names(Path(self.class_names))
        return AdoptRequest(
            url=str(self.url),
            index_url=None if self.index is None else str(self.index),
            splits=tuple(self.split.items()),
            format=self.format,
            labels=self.labels,
            class_names=names,
            shuffled=self.shuffled,
            digest=self.digest,
            overwrite=self.overwrite,
        )


def _adopted(asked: Adopt) -> Dataset:
    """Adopt the data of a request, and return the dataset; a dry run returns the data that were found."""
    if not asked.dry_run:
        adoption = _run(asked, asked.viewer())
        return Dataset(url=adoption.url, known=adoption.manifest)
    summary = _looked_at(asked, asked.viewer())
    first = summary.get("first_shard")
    planned = Planned(
        name=name_from(str(asked.url)),
        format=summary["format"],
        splits={split["name"]: (split.get("samples", 0), split["shards"]) for split in summary["splits"]},
        notes=() if first is None else (f"in {first['file']}: {first['samples']} images, labels: {first['labels']}",),
    )
    return Dataset(url=str(asked.url), known=planned)


def _run(asked: Adopt, viewer: Viewer) -> Adoption:
    with AdoptProgress(viewer) as progress:
        adoption = adopt_data(asked.adoption(), progress, workers=asked.workers)
    if adoption.changes:
        raise UsageError(
            f"{adoption.url}: the data has changed since it was adopted ({adoption.changes}); read it again with "
            "`overwrite`"
        )
    return adoption


def _looked_at(asked: Adopt, viewer: Viewer) -> Mapping[str, Any]:
    """Look at the data and read the first shard; nothing is written."""
    with AdoptProgress(viewer) as progress:
        progress.step("listing")
        data = open_linked(str(asked.url))
        found = find(data, asked.adoption())
        shards, num_bytes = Counter[str](), Counter[str]()
        for shard in found.shards:
            shards[shard.split] += 1
            num_bytes[shard.split] += shard.num_bytes
        splits = [{"name": name, "shards": shards[name], "bytes": num_bytes[name]} for name in shards]
        summary = {"url": str(asked.url), "kind": found.kind, "format": found.format, "splits": splits}
        if found.images:
            return summary
        progress.step("reading the first shard")
        first = read_first(ReadJob(data_url=data.url, found=found, labels=asked.labels, digest=False))
        return {
            **summary,
            "first_shard": {
                "file": found.shards[0].name,
                "samples": first.samples,
                "labels": "text" if first.kind.texts else "number" if first.labels else "none",
                "labelled": first.labels.total(),
                "fields": dict(first.fields),
            },
        }


def _print(asked: Adopt, *, as_json: bool) -> None:
    viewer = people(asked, quiet=as_json)
    summary = _looked_at(asked, viewer) if asked.dry_run else _summary(_run(asked, viewer))
    click.echo(json.dumps(summary) if as_json else "\n".join(_lines(summary)))


def _summary(adoption: Adoption) -> Mapping[str, Any]:
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


def _lines(summary: Mapping[str, Any]) -> Sequence[str]:
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


adopt = function_of(Adopt, _adopted, "adopt")
command = command_of(Adopt, _print, "adopt", epilog=EPILOG)
