"""`dataprep build`: original files to verified shards; a command a dataset, of which most are one and the same."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

from dataprep.build import begin_shard
from dataprep.commands.options import Bytes, human_bytes, json_option, workers_option
from dataprep.commands.progress import BuildProgress
from dataprep.commands.region_options import (
    beside_option,
    named_place,
    place_of_workers,
    region_policy_option,
    runs_here,
    tpu_option,
)
from dataprep.commands.region_plan import PlannedBucket, planned_buckets
from dataprep.driver import BuildRequest, BuildResult, Engine, prepare, run_build
from dataprep.errors import SourceError, UsageError
from dataprep.formats import FORMATS
from dataprep.images import ImagePolicy
from dataprep.placement import guard
from dataprep.plan import DEFAULT_SHARD_BYTES, BuildOptions, Plan
from dataprep.pool import Pool
from dataprep.records import SplitManifest
from dataprep.sources import BUILT, DATASETS, Dataset, sized_dataset
from dataprep.sources.fake import DEFAULT_IMAGES, FakeImageNet
from dataprep.storage import open_originals, open_storage

EPILOG = """\b
Examples:
  dataprep build coco-dup5 --source coco --output gs://bucket/coco-dup5 --format tfrecord --beside europe-west4-a
  dataprep build imagenet --source originals --output imagenet --format webdataset --resize 256 --quality 90
  dataprep build imagenet --source originals --output imagenet --format imagefolder --split val
  dataprep build coco-dup5 --source coco --output out --format webdataset --dry-run
  dataprep build imagenet --source gs://b/originals --output gs://b/imagenet --format tfrecord \\
      --runner DataflowRunner -- --project=P --region=us-central1 --temp_location=gs://b/tmp \\
      --sdk_container_image=IMAGE
  dataprep build imagenet --source gs://b/originals --output gs://b/imagenet --format tfrecord \\
      --runner FlinkRunner -- --flink_master=HOST:8081 --environment_type=DOCKER --environment_config=IMAGE

\b
Killed, or out of disk? Run the same command again: only what is missing is done, and the result is the same
to the byte.
"""
LAION = "laion"
_OUTPUT_ADVICE = "choose a bucket beside the reader, or say with --beside or --tpu where it will be read"
_WORKER_MODULES = ("dataprep.cli", "dataprep.build", "numpy", "pyarrow.parquet", "simplejpeg")
_FETCHING_MODULES = (*_WORKER_MODULES, "dataprep.laion.build", "dataprep.laion.fetching", "cv2")
_BUCKET_MODULES = ("google.cloud.storage", "obstore.store")


SHARED_OPTIONS = (
    click.option("--output", required=True, metavar="URL", help="Folder or gs:// prefix for the dataset."),
    click.option("--runner", default="local", show_default=True, help="local, or a Beam runner by its name."),
    workers_option,
    click.option(
        "--stall-minutes",
        type=click.FloatRange(0, min_open=True),
        default=20,
        show_default=True,
        help="Beam runners: a running job that finishes no shard for so long is cancelled.",
    ),
    beside_option,
    tpu_option,
    region_policy_option,
    click.option("--overwrite", is_flag=True, help="Remove the dataset that stands there first."),
    click.option("--dry-run", is_flag=True, help="Print the plan and write nothing."),
    json_option,
)
"""Of every dataset."""


def shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that every dataset has."""
    for option in reversed(SHARED_OPTIONS):
        command = option(command)
    return command


class _Datasets(click.Group):
    """A command a dataset; that of laion is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(BUILT)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == LAION:
            from dataprep.commands.build_laion import command as laion

            return laion
        return _command_of(cmd_name) if cmd_name in DATASETS else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in BUILT and not args[0].startswith("-"):
            ctx.fail(f"{args[0]!r} is not one of {', '.join(BUILT)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Datasets"):
            formatter.write_dl([(name, _one_line(BUILT[name].description)) for name in BUILT])


@click.group("build", cls=_Datasets, epilog=EPILOG, subcommand_metavar="DATASET [OPTIONS] [-- BEAM_OPTIONS]")
def command() -> None:
    """Build a dataset from its original files: plan, shards, index, manifest.

    Every dataset has options of its own (dataprep build DATASET --help); all have --dry-run and --json.
    """


@click.command("build")
@click.argument("beam_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM_OPTIONS]")
@click.option("--source", metavar="URL", help="Folder or gs:// prefix that holds the original files.")
@click.option("--images", "fake_images", type=int, help="imagenet-fake: train images (default 10,000).")
@click.option("--format", "format_name", required=True, type=click.Choice(list(FORMATS)))
@click.option("--split", "splits", multiple=True, help="Build only this split; may be repeated.")
@click.option("--shard-bytes", type=Bytes(), default=DEFAULT_SHARD_BYTES, show_default="256MiB")
@click.option("--num-shards", type=int, help="Shards of each split, instead of --shard-bytes.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of the samples.")
@click.option(
    "--repeat",
    type=click.Choice(["virtual", "physical"]),
    default="virtual",
    show_default=True,
    help="coco-dup5: five passes made by the loader from bytes stored once, or stored five times.",
)
@click.option("--resize", "short_side", type=int, metavar="PIXELS", help="Shrink images to this shorter side.")
@click.option("--quality", type=int, default=95, show_default=True, help="JPEG quality of resized images.")
@click.option("--check", type=click.Choice(["decode", "header", "none"]), default="decode", show_default=True)
@click.option(
    "--on-bad",
    type=click.Choice(["repair", "reject", "fail"]),
    default="repair",
    show_default=True,
    help="What to do with a PNG, CMYK … image. Truncated and undecodable ones are always rejected.",
)
@click.option("--apply-exif", is_flag=True, help="Rewrite images whose EXIF orientation is not 1.")
@click.option("--max-reject-ratio", type=click.FloatRange(0, 1), help="Share of images that may be rejected.")
@click.option("--allow-partial", is_flag=True, help="Accept counts other than the published; recorded.")
@click.option("--check-source", is_flag=True, help="Compare the archives' md5 with the published ones first.")
@shared_options
def _archives(
    dataset: str,
    beam_options: tuple[str, ...],
    source: str | None,
    output: str,
    format_name: str,
    fake_images: int | None,
    splits: tuple[str, ...],
    runner: str,
    workers: int,
    stall_minutes: float,
    beside: str | None,
    tpu: str | None,
    region_policy: str,
    overwrite: bool,
    dry_run: bool,
    check_source: bool,
    max_reject_ratio: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Nothing is unpacked: images are read as byte ranges of the archives.

    A valid JPEG keeps its bytes; what is no RGB or grey JPEG is re-encoded, what cannot be decoded is rejected and
    listed.
    """
    facts = sized_dataset(dataset, fake_images)
    options["fake_images"] = fake_images or (DEFAULT_IMAGES if facts.generated else None)
    request = BuildRequest(
        options=_options(dataset, format_name, splits or facts.default_splits, **options),
        source_url=_source(facts, source),
        output_url=output,
        max_reject_ratio=facts.default_max_reject_ratio if max_reject_ratio is None else max_reject_ratio,
        overwrite=overwrite,
    )
    refuse_beam_options(runner, beam_options)
    _refuse_unfit(request)
    reader, builder = named_place(beside, tpu), place_of_workers(beam_options)
    if not dry_run:
        guard_build(request, region_policy, reader=reader, builder=builder, runner=runner)
    with BuildProgress(quiet=as_json) as progress:
        if check_source:
            _check_source(request, progress)
        if dry_run:
            plan, _ = prepare(request, progress, keep=False)
            progress.stop()
            buckets = planned_buckets(plan, request, reader=reader, builder=builder, runner=runner, workers=workers)
            print_plan(plan, request, buckets, _plan_lines(plan), as_json)
            return
        started_s = time.monotonic()
        with open_engine(request, runner, workers, beam_options, 60 * stall_minutes, progress) as engine:
            result = run_build(request, engine, progress)
        elapsed_s = time.monotonic() - started_s
    print_result(result, output, elapsed_s, _split_line, as_json)


def _command_of(dataset: str) -> click.Command:
    """The command of one of DATASETS."""
    return click.Command(
        dataset,
        params=_archives.params,
        callback=partial(cast(Callable[..., None], _archives.callback), dataset),
        help=f"Build {dataset} from its original files.\n\n{_archives.help}",
        epilog=EPILOG,
    )


def _one_line(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def _source(dataset: Dataset, source: str | None) -> str:
    """Where the originals are; generated ones are written there first."""
    if not isinstance(dataset, FakeImageNet):
        if source is None:
            raise UsageError(f"{dataset.name} needs --source, the folder or gs:// prefix of its original files")
        return source
    directory = Path(source or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "dataprep", dataset.name))
    dataset.write_originals(directory)
    return str(directory)


def _options(dataset: str, format_name: str, splits: tuple[str, ...], **options: Any) -> BuildOptions:
    images = {name: options.pop(name) for name in ("check", "on_bad", "apply_exif", "short_side", "quality")}
    known = DATASETS[dataset].splits
    for split in splits:
        if split not in known:
            raise UsageError(f"{dataset} has no split {split!r}; it has {', '.join(known)}")
    if options["repeat"] == "physical" and all(DATASETS[dataset].repeats(split) == 1 for split in splits):
        raise UsageError(f"--repeat physical: {dataset} {'+'.join(splits)} is not repeated; leave it out")
    return BuildOptions(
        dataset=dataset, format=format_name, splits=tuple(splits), images=ImagePolicy(**images), **options
    )


def refuse_beam_options(runner: str, beam_options: tuple[str, ...]) -> None:
    """Raises UsageError where there are some and no Beam runner."""
    if beam_options and runner == "local":
        raise UsageError(f"got Beam options {' '.join(beam_options)} with --runner local; name a Beam runner")


def guard_build(request: BuildRequest, policy: str, *, reader: str | None, builder: str | None, runner: str) -> None:
    """The region check of output and source; see `dataprep.placement.guard`.

    Args:
        reader: Zone or region in which the output will be read; None: this machine's.
        builder: Zone or region of a Beam runner's workers; None: this machine's, or unknown.
    """
    guard(request.output_url, policy, where=reader, advice=_OUTPUT_ADVICE)
    if runs_here(runner) or builder is not None:
        guard(request.source_url, policy, where=builder)


def _refuse_unfit(request: BuildRequest) -> None:
    in_bucket = not open_storage(request.output_url).is_local
    if request.options.format == "imagefolder" and in_bucket:
        if request.options.repeat == "physical":
            raise UsageError("--repeat physical: a bucket has no links; use --repeat virtual or a shard format")
        click.echo(
            "dataprep: warning: an image folder in a bucket is one object an image: a request and 50 ms for each read "
            "of 110 kB. Prefer --format webdataset or tfrecord",
            err=True,
        )


def open_engine(
    request: BuildRequest,
    runner: str,
    workers: int,
    beam_options: tuple[str, ...],
    stall_s: float,
    progress: BuildProgress,
) -> AbstractContextManager[Engine]:
    """What runs the shards of a build: processes of this machine, or a Beam runner."""
    if runner == "local":
        return _local_engine(request, workers, progress)
    return nullcontext(_beam_engine(request, runner, workers, beam_options, stall_s, progress))


@contextmanager
def _local_engine(request: BuildRequest, workers: int, progress: BuildProgress) -> Iterator[Engine]:
    """The pool; what its workers need is imported while the originals are enumerated and planned."""
    on_disk = open_storage(request.source_url).is_local and open_storage(request.output_url).is_local
    modules = _WORKER_MODULES if request.laion is None else _FETCHING_MODULES
    with Pool(workers, progress.log, preload=modules + (() if on_disk else _BUCKET_MODULES)) as pool:
        yield lambda job, indexes: pool.run(partial(begin_shard, job), indexes)


def _beam_engine(
    request: BuildRequest,
    runner: str,
    workers: int,
    beam_options: tuple[str, ...],
    stall_s: float,
    progress: BuildProgress,
) -> Engine:
    with _needing_beam(runner):
        from pipelines.engine import beam_engine
    urls = (request.source_url, request.output_url)
    return beam_engine(runner, workers, beam_options, urls, stall_s=stall_s, log=progress.log)


def shards_at_once(runner: str, workers: int, beam_options: tuple[str, ...], urls: tuple[str, ...]) -> int:
    """How many shards a build has under way at once; of a Beam runner its options say it, or --workers.

    Args:
        runner: `local`, or a Beam runner's name.
        workers: Of --workers.
        beam_options: What was given after `--`.
        urls: Of originals and output.
    """
    if runner == "local":
        return workers
    with _needing_beam(runner):
        from pipelines.engine import shards_under_way
    return shards_under_way(runner, workers, beam_options, urls)


@contextmanager
def _needing_beam(runner: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UsageError(f"--runner {runner} needs Apache Beam ({error}): pip install 'dataprep[beam]'") from error


def _check_source(request: BuildRequest, progress: BuildProgress) -> None:
    source = open_originals(request.source_url)
    dataset = DATASETS[request.options.dataset]
    for split in request.options.splits:
        for check in dataset.check_source(source, split, progress.reading):
            if not check.matches:
                raise SourceError(
                    f"{source.url_of(check.file)}: {check.found_bytes:,} bytes, "
                    f"md5 {check.found_md5 or 'not computed'}; "
                    f"published: {check.expected_bytes or '?'} bytes, md5 {check.expected_md5}. The file is damaged "
                    "or another edition; download it again, or leave out --check-source"
                )
            progress.log(f"{check.file}: md5 {check.found_md5} as published")


def print_plan(
    plan: Plan, request: BuildRequest, buckets: list[PlannedBucket], lines: Iterable[str], as_json: bool
) -> None:
    """What a build would do; `lines` say it of its splits."""
    if as_json:
        click.echo(json.dumps(plan.document() | {"buckets": [bucket.document() for bucket in buckets]}))
        return
    click.echo(f"{plan.options.dataset} as {plan.options.format} to {request.output_url}, plan {plan.plan_hash[:12]}")
    for line in (*lines, *(bucket.line for bucket in buckets)):
        click.echo(line)
    click.echo("Nothing was written (--dry-run).")


def print_result(
    result: BuildResult, output: str, elapsed_s: float, line_of: Callable[[SplitManifest], str], as_json: bool
) -> None:
    """What a build did; `line_of` says it of a split."""
    manifest = result.manifest
    if as_json:
        summary = asdict(manifest) | {"url": output, "elapsed_s": round(elapsed_s, 3)}
        summary["shards_built"] = result.shards_built
        json.dump(summary, sys.stdout)
        click.echo()
        return
    for split in manifest.splits:
        click.echo(line_of(split))
    if result.shards_built == 0:
        click.echo(f"{output} was whole already; nothing was done")
        return
    samples = sum(split.samples for split in manifest.splits)
    click.echo(f"{output} is whole: {samples:,} samples in {elapsed_s:.1f} s; check it with: dataprep verify {output}")


def _plan_lines(plan: Plan) -> Iterator[str]:
    for split in plan.splits:
        passes = split.repeat_stored if FORMATS[plan.options.format] is not None else 1
        yield (
            f"  {split.name}: {sum(split.shard_samples):,} samples in {len(split.shard_samples):,} shards, about "
            f"{human_bytes(split.source_bytes * passes)}; an epoch makes {split.repeat_count} passes, "
            f"{split.repeat_stored} stored"
        )


def _split_line(split: SplitManifest) -> str:
    repaired, rejected = sum(split.repaired.values()), sum(split.rejected.values())
    return (
        f"{split.name}: {split.samples:,} samples, {len(split.shards)} shards, {human_bytes(split.num_bytes)}, "
        f"{repaired} repaired{_reasons(split.repaired)}, {rejected} rejected{_reasons(split.rejected)}"
    )


def _reasons(counts: dict[str, int]) -> str:
    return f" ({', '.join(f'{count} {reason}' for reason, count in counts.items())})" if counts else ""
