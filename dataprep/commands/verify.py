"""`dataprep verify`: whether every byte of a dataset is what its manifest says."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from dataprep.arguments import OTHER, READ, Place, command_of, function_of, option, request
from dataprep.commands.progress import LocalRun, VerifyProgress, Viewer, people
from dataprep.dataset.manifest import MANIFEST
from dataprep.errors import UndecidedError, VerificationError
from dataprep.messages import counted, human_bytes, printable, shell_words
from dataprep.verification.run import Report
from dataprep.verification.run import verify as verify_dataset

EPILOG = """\b
Examples:
  dataprep verify shards/coco-dup5
  dataprep verify gs://bucket/imagenet --deep --workers 16
  dataprep verify gs://bucket/imagenet --replicas
  dataprep verify shards/coco-dup5 --json | jq '.findings[].where'

\b
Exit codes: 0 complete, 1 something differs, 2 no built dataset there, 3 something could not be read, but the rest is
right.
"""


@request
class Verify(LocalRun):
    """Compare every byte of the dataset at URL with its manifest, and its parts with each other.

    It checks sizes, SHA-256 and CRC32C of all shards; every record against the index; keys, classes and events; and
    counts against the published counts. It also finds missing files, and extra files that readers would take for a part
    of the dataset. Every difference is one line; at most 1,000 lines, and 50 per shard, are printed, and the rest is
    counted.

    In data that other tools wrote, every image is decoded, and bad images are listed.

    With `replicas`, the size and CRC32C of every object of every copy, except cards, are compared too. They come from
    Cloud Storage's listings, which costs no transfer. To read every byte of a copy, verify its own URL from a machine
    in its region.
    """

    url: Place = option("Folder or gs:// prefix of the dataset.", metavar="URL", kw_only=False, group=READ)
    deep: bool = option("Also decode every image completely, which takes longer.", default=False, group=OTHER)
    replicas: bool = option(
        "Also compare all copies listed in replicas.json, by their object listings only.", default=False, group=OTHER
    )


def _verified(asked: Verify, viewer: Viewer | None = None) -> Report:
    with VerifyProgress(viewer or asked.viewer()) as progress:
        return verify_dataset(
            str(asked.url), deep=asked.deep, workers=asked.workers, progress=progress, replicas=asked.replicas
        )


def _print(asked: Verify, *, as_json: bool) -> None:
    """Print a report. Raises VerificationError if the dataset differs, UndecidedError if it is not known."""
    report = _verified(asked, people(asked, quiet=as_json))
    if as_json:
        click.echo(json.dumps({"verdict": report.verdict, **asdict(report)}))
    else:
        for finding in report.findings:
            click.echo(f"{finding.kind:<10} {printable(finding.where)}: {printable(finding.detail)}")
        if more := sum(report.counts.values()) - len(report.findings):
            click.echo(f"… and {more:,} more")
    if report.verdict == "differs" and report.is_adopted:
        raise VerificationError(
            f"{report.url}: {report.summary}; replace or remove the named images, and index the data again with "
            "dataprep adopt --overwrite; or train with --on-error skip, which leaves them out"
        )
    if report.verdict == "differs":
        raise VerificationError(
            f"{report.url} differs from its manifest: {report.summary}. To repair it, remove the named files, then "
            f"either restore them from another copy (dataprep replicate OTHER_COPY --to {shell_words(report.url)}), or "
            f"remove {MANIFEST} too and run the build again. Or rebuild everything with --overwrite"
        )
    if report.verdict == "undecided":
        raise UndecidedError(
            f"{report.url}: {report.summary}; what could be read is right: run the same command again "
            "when everything can be read"
        )
    if not as_json:
        copies = f", copies of the same size and CRC32C: {report.copies:,}" if asked.replicas else ""
        images = " and every image decoded" if report.deep else ""
        click.echo(
            f"{report.url} is complete: {counted(report.samples, 'sample')} in {counted(report.shards, 'shard')}, "
            f"{human_bytes(report.num_bytes)} read{images}{copies} in {report.elapsed_s:.1f} s"
        )


verify = function_of(Verify, _verified, "verify")
command = command_of(Verify, _print, "verify", epilog=EPILOG)
