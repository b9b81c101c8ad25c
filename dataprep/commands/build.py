"""`dataprep build`: original files to verified shards. A command for each dataset, most of which share one function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Any, cast

import click

from dataprep.build.images import ImagePolicy
from dataprep.build.plan import DEFAULT_SHARD_BYTES, BuildOptions, Plan
from dataprep.build.request import BuildRequest
from dataprep.commands.build_run import Run, Shown, build, refuse_unknown_runner, shared_options
from dataprep.commands.options import SEED, WHOLE, Bytes, Finite
from dataprep.commands.progress import BuildProgress
from dataprep.dataset.records import SplitManifest
from dataprep.errors import SourceError, UsageError
from dataprep.formats import FORMATS
from dataprep.messages import human_bytes
from dataprep.sources import BUILT, DATASETS, Dataset, sized_dataset
from dataprep.sources.fake import DEFAULT_IMAGES, FakeImageNet
from dataprep.storage import open_originals, open_storage

EPILOG = """\b
Examples:
  dataprep build coco-dup5 --source coco --output gs://bucket/coco-dup5 --format tfrecord --beside europe-west4-a
  dataprep build imagenet --source originals --output imagenet --format webdataset --resize 256 --quality 90
  dataprep build imagenet --source originals --output imagenet --format imagefolder --split val
  dataprep build coco-dup5 --source coco --output out --format webdataset --dry-run
  dataprep build imagenet-fake --images 2000 --output fake --format tfrecord
  dataprep build imagenet --source gs://b/originals --output gs://b/imagenet --format tfrecord \\
      --runner DataflowRunner -- --project=P --region=us-central1 --temp_location=gs://b/tmp \\
      --sdk_container_image=IMAGE
  dataprep build imagenet --source gs://b/originals --output gs://b/imagenet --format tfrecord \\
      --runner FlinkRunner -- --flink_master=HOST:8081 --environment_type=DOCKER --environment_config=IMAGE

\b
After an interruption, a crash or a full disk run the same command again: it builds only what is missing, and the
result has the same bytes.
"""
LAION = "laion"


class _Datasets(click.Group):
    """A group with a command for each dataset; laion's is imported only when it is called."""

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
            formatter.write_dl([(name, _first_sentence(BUILT[name].description)) for name in BUILT])


@click.group("build", cls=_Datasets, epilog=EPILOG, subcommand_metavar="DATASET [OPTIONS] [-- BEAM_OPTIONS]")
def command() -> None:
    """Build a dataset from its original files: plan, shards, index, manifest.

    `dataprep build DATASET --help` lists the options for a dataset.
    """


@click.command("build")
@click.argument("beam_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM_OPTIONS]")
@click.option("--source", metavar="URL", help="Folder or gs:// prefix that holds the original files.")
@click.option(
    "--images", "fake_images", type=WHOLE, help="imagenet-fake: number of images in train.  [default: 10,000]"
)
@click.option("--format", "format_name", required=True, type=click.Choice(list(FORMATS)), help="Format to write.")
@click.option("--split", "splits", multiple=True, help="Build this split only; may be repeated.")
@click.option(
    "--shard-bytes",
    type=Bytes(),
    default=DEFAULT_SHARD_BYTES,
    show_default="256MiB",
    help="Bytes of original images in a shard.",
)
@click.option("--num-shards", type=WHOLE, help="Number of shards in each split, instead of --shard-bytes.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the order of the samples.")
@click.option(
    "--repeat",
    type=click.Choice(["virtual", "physical"]),
    default="virtual",
    show_default=True,
    help="coco-dup5: virtual stores each image once, and loaders make five passes an epoch; physical stores all five.",
)
@click.option(
    "--resize",
    "short_side",
    type=WHOLE,
    metavar="PIXELS",
    help="Shrink larger images to this shorter side.",
)
@click.option(
    "--quality",
    type=WHOLE,
    default=95,
    show_default=True,
    help="JPEG quality of resized images.",
)
@click.option(
    "--check", type=click.Choice(["decode", "header", "none"]), default="decode", show_default=True,
    help="How to check every image: decode it, read its header, or look at its first three bytes.",
)  # fmt: skip
@click.option(
    "--on-bad",
    type=click.Choice(["repair", "reject", "fail"]),
    default="repair",
    show_default=True,
    help="What to do with PNG, CMYK and the like. Truncated and undecodable images are always rejected.",
)
@click.option(
    "--apply-exif", is_flag=True, help="Turn images upright whose EXIF orientation is not 1, and encode them again."
)
@click.option(
    "--max-reject-ratio", type=Finite(0, 1), help="Largest share of images that may be rejected.  [default: 0]"
)
@click.option(
    "--allow-partial", is_flag=True, help="Accept other counts of images than the published ones, and record that."
)
@click.option(
    "--check-source", is_flag=True, help="First compare size and MD5 of the archives with the published ones."
)
@shared_options
def _archives(
    dataset: str,
    beam_options: tuple[str, ...],
    run: Run,
    source: str | None,
    output: str,
    format_name: str,
    fake_images: int | None,
    splits: tuple[str, ...],
    overwrite: bool,
    check_source: bool,
    max_reject_ratio: float | None,
    **options: Any,
) -> None:
    """Images are read as byte ranges of the archives, so nothing is unpacked.

    A valid RGB or grey JPEG keeps its bytes. Other images are re-encoded; images that cannot be decoded are rejected
    and listed.
    """
    refuse_unknown_runner(run.runner, beam_options)
    facts = sized_dataset(dataset, fake_images)
    options["fake_images"] = fake_images or (DEFAULT_IMAGES if facts.generated else None)
    request = BuildRequest(
        options=_options(dataset, format_name, splits or facts.default_splits, **options),
        source_url=_source(facts, source, write=not run.dry_run),
        output_url=output,
        max_reject_ratio=facts.default_max_reject_ratio if max_reject_ratio is None else max_reject_ratio,
        overwrite=overwrite,
    )
    _refuse_unfit(request)
    check = partial(_check_source, request) if check_source else lambda _progress: None
    shown = Shown(progress=BuildProgress, plan_lines=_plan_lines, split_line=_split_line)
    build(request, run, beam_options, shown, check=check)


def _command_of(dataset: str) -> click.Command:
    """Return the command of one of DATASETS."""
    return click.Command(
        dataset,
        params=_archives.params,
        callback=partial(cast(Callable[..., None], _archives.callback), dataset),
        help=f"Build {dataset} from its original files.\n\n{cleandoc(_archives.help or '')}",
        epilog=EPILOG,
    )


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def _source(dataset: Dataset, source: str | None, *, write: bool) -> str:
    """Return the URL of the originals; with `write`, generated originals are written there first."""
    if not isinstance(dataset, FakeImageNet):
        if source is None:
            raise UsageError(f"{dataset.name} needs --source, the folder or gs:// prefix of its original files")
        return source
    directory = Path(source or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "dataprep", dataset.name))
    if write:
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


def _refuse_unfit(request: BuildRequest) -> None:
    in_bucket = not open_storage(request.output_url).is_local
    if FORMATS[request.options.format].one_file_per_image and in_bucket:
        if request.options.repeat == "physical":
            raise UsageError("--repeat physical: a bucket has no links; use --repeat virtual or a shard format")
        click.echo(
            "dataprep: warning: an image folder in a bucket is one object an image: a request and 50 ms for each read "
            "of 110 kB. Prefer --format webdataset or tfrecord",
            err=True,
        )


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


def _plan_lines(plan: Plan) -> Iterator[str]:
    for split in plan.splits:
        passes = FORMATS[plan.options.format].passes_written(split.repeat_stored)
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
