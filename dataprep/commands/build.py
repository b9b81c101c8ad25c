"""`dataprep build`: original files to verified shards. A command for each dataset, most of which share one function."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any, cast

import click

from dataprep.arguments import StrictCommand
from dataprep.builder.plan import BuildOptions
from dataprep.builder.request import BuildRequest
from dataprep.commands.build_options import image_options, image_policy, plan_lines, shard_options, split_line
from dataprep.commands.build_run import Run, Shown, build, refuse_unknown_runner, shared_options
from dataprep.commands.options import WHOLE
from dataprep.commands.progress import BuildProgress
from dataprep.errors import SourceError, UsageError
from dataprep.formats import FORMATS
from dataprep.sources import BUILT, DATASETS, Dataset, configured
from dataprep.storage import open_originals, open_storage
from dataprep.storage.hub import is_hub, pinned

EPILOG = """\b
Examples:
  dataprep build coco --source coco --output shards --format webdataset
  dataprep build coco-dup5 --source coco --output gs://bucket/coco-dup5 --format tfrecord --beside europe-west4-a
  dataprep build imagenet --source originals --output imagenet --format webdataset --resize 256 --quality 90
  dataprep build imagenet --source originals --output imagenet --format imagefolder --split val
  dataprep build coco-dup5 --source coco --output out --format webdataset --dry-run
  dataprep build imagenet-21k --source winter21_whole --output gs://b/imagenet-21k --format webdataset
  dataprep build imagenet-fake --images 2000 --output fake --format tfrecord
  dataprep build folder --source ~/Pictures --output shards --format webdataset
  dataprep build table --source hf://datasets/OWNER/NAME --output shards --format webdataset
  dataprep build imagenet --source gs://b/originals --output gs://b/imagenet --format tfrecord \\
      --runner DataflowRunner -- --project=P --region=us-central1 --temp_location=gs://b/tmp \\
      --sdk_container_image=IMAGE

\b
After an interruption, a crash or a full disk run the same command again: it builds only what is missing. Of the same
original files the result has the same bytes.
"""
_OF_THEIR_OWN = {
    "coco": "dataprep.commands.build_coco",
    "folder": "dataprep.commands.build_folder",
    "laion": "dataprep.commands.build_laion",
    "table": "dataprep.commands.build_table",
}
"""Modules of the commands that do not share this one's options; each is imported when it is called."""


class _Datasets(click.Group):
    """A group with a command for each dataset."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(BUILT)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _OF_THEIR_OWN:
            found: click.Command = import_module(_OF_THEIR_OWN[cmd_name]).command
            return found
        if cmd_name not in BUILT and _is_custom(cmd_name):
            from dataprep.commands.build_custom import command_of

            return command_of(cmd_name)
        return _command_of(cmd_name) if cmd_name in DATASETS else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in BUILT and not args[0].startswith("-") and not _is_custom(args[0]):
            from dataprep.sources.custom import installed_classes

            known = ", ".join([*BUILT, *installed_classes()])
            ctx.fail(f"{args[0]!r} is not one of {known}, and not module:NAME of a class of your own")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from dataprep.sources.custom import installed_classes

        with formatter.section("Datasets"):
            formatter.write_dl(
                [
                    *((name, _first_sentence(BUILT[name].description)) for name in BUILT),
                    *(
                        (name, f"{found.value}, installed with a package")
                        for name, found in installed_classes().items()
                    ),
                    ("module:NAME", "a dataset class of your own; see docs/own-dataset.md"),
                ]
            )


@click.group("build", cls=_Datasets, epilog=EPILOG, subcommand_metavar="DATASET [OPTIONS] [-- ENGINE_OPTIONS]")
def command() -> None:
    """Build a dataset from its original files: plan, shards, index, manifest.

    `dataprep build DATASET --help` lists the options for a dataset.
    """


@click.command("build", cls=StrictCommand)
@click.argument("engine_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE_OPTIONS]")
@click.option("--source", metavar="URL", help="Folder or gs:// prefix that holds the original files.")
@click.option(
    "--images", "fake_images", type=WHOLE, help="imagenet-fake: number of images in train.  [default: 10,000]"
)
@shard_options
@click.option(
    "--repeat",
    type=click.Choice(["virtual", "physical"]),
    default="virtual",
    show_default=True,
    help="coco-dup5: virtual stores each image once, and loaders make five passes an epoch; physical stores all five.",
)
@image_options
@click.option(
    "--allow-partial", is_flag=True, help="Accept other counts of images than the published ones, and record that."
)
@click.option(
    "--check-source",
    "compare",
    is_flag=True,
    help="First compare size and MD5 of the archives with the published ones.",
)
@shared_options
def _archives(
    dataset: str,
    engine_options: tuple[str, ...],
    run: Run,
    source: str | None,
    output: str,
    format_name: str,
    fake_images: int | None,
    splits: tuple[str, ...],
    overwrite: bool,
    compare: bool,
    max_reject_ratio: float | None,
    **options: Any,
) -> None:
    """Images are read as byte ranges of the archives, which are not unpacked.

    A valid RGB or grey JPEG keeps its bytes. Other images are re-encoded; images that cannot be decoded are rejected
    and listed.
    """
    refuse_unknown_runner(run, engine_options)
    facts = configured(dataset, fake_images=fake_images)
    options["fake_images"] = fake_images or _default_images(facts)
    request = BuildRequest(
        options=_options(dataset, format_name, splits or facts.default_splits, **options),
        source_url=_source(facts, source, write=not run.dry_run),
        output_url=output,
        max_reject_ratio=facts.default_max_reject_ratio if max_reject_ratio is None else max_reject_ratio,
        overwrite=overwrite,
    )
    build_images(request, run, engine_options, compare=compare)


def _is_custom(name: str) -> bool:
    from dataprep.sources.custom import is_custom

    return is_custom(name)


def _command_of(dataset: str) -> click.Command:
    """Return the command of one of DATASETS."""
    return StrictCommand(
        dataset,
        params=_archives.params,
        callback=partial(cast(Callable[..., None], _archives.callback), dataset),
        help=f"Build {dataset} from its original files.\n\n{cleandoc(_archives.help or '')}",
        epilog=EPILOG,
    )


def _default_images(dataset: Dataset) -> int | None:
    if not dataset.generated:
        return None
    from dataprep.sources.fake import DEFAULT_IMAGES

    return DEFAULT_IMAGES


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def _source(dataset: Dataset, source: str | None, *, write: bool) -> str:
    """Return the URL of the originals; with `write`, generated originals are written there first."""
    if not dataset.generated:
        if source is None:
            raise UsageError(f"{dataset.name} needs --source, the folder or gs:// prefix of its original files")
        return pinned(source).url if is_hub(source) else source
    from dataprep.sources.fake import FakeImageNet

    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "dataprep", dataset.name)
    place = open_storage(source or str(default))
    if not place.is_local:
        raise UsageError(f"--source {source}: {dataset.name} generates its originals on a disk; expected a folder")
    directory = Path(place.url)
    if write and isinstance(dataset, FakeImageNet):
        dataset.write_originals(directory)
    return str(directory)


def _options(dataset: str, format_name: str, splits: tuple[str, ...], **options: Any) -> BuildOptions:
    images = image_policy(options)
    known = DATASETS[dataset].splits
    for split in splits:
        if split not in known:
            raise UsageError(f"{dataset} has no split {split!r}; it has {', '.join(known)}")
    if options["repeat"] == "physical" and all(DATASETS[dataset].repeats(split) == 1 for split in splits):
        raise UsageError(f"--repeat physical: {dataset} {'+'.join(splits)} is not repeated; leave it out")
    return BuildOptions(dataset=dataset, format=format_name, splits=tuple(splits), images=images, **options)


def build_images(request: BuildRequest, run: Run, engine_options: tuple[str, ...], *, compare: bool = False) -> None:
    """Build or convert a dataset of images and print the result, or print its plan.

    Args:
        request: What to build.
        run: Options of the run.
        engine_options: Options of the engine, given after `--`.
        compare: Compare the archives with their published sizes and digests first.
    """
    _refuse_unfit(request)
    shown = Shown(progress=BuildProgress, plan_lines=plan_lines, split_line=split_line)
    check = partial(_check_source, request) if compare else lambda _progress: None
    build(request, run, engine_options, shown, check=check)


def _refuse_unfit(request: BuildRequest) -> None:
    """Refuse links in a bucket, and warn of an image folder there."""
    if is_hub(request.output_url):
        raise UsageError(f"--output {request.output_url}: the Hub is only read; choose a folder or gs://bucket/prefix")
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
    """Compare the archives with their published sizes and digests. Raises SourceError if one differs."""
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
