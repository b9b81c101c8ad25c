"""Options that all builds of pictures share: how shards are cut, and what is done to images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click

from dataprep.builder.images import ImagePolicy
from dataprep.builder.plan import DEFAULT_SHARD_BYTES, Plan
from dataprep.commands.options import SEED, WHOLE, Bytes, Finite, NamedDefaultOption
from dataprep.dataset.documents import JsonObject
from dataprep.dataset.features import described
from dataprep.dataset.records import SplitManifest
from dataprep.formats import FORMATS
from dataprep.messages import counted, human_bytes

Command = Callable[..., None]

_SHARD_OPTIONS = (
    click.option("--format", "format_name", required=True, type=click.Choice(list(FORMATS)), help="Format to write."),
    click.option("--split", "splits", multiple=True, help="Build this split only; may be repeated."),
    click.option(
        "--shard-bytes",
        cls=NamedDefaultOption,
        type=Bytes(),
        default=DEFAULT_SHARD_BYTES,
        show_default="256MiB",
        help="Bytes of original images in a shard.",
    ),
    click.option("--num-shards", type=WHOLE, help="Number of shards in each split, instead of --shard-bytes."),
    click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the order of the samples."),
)
_IMAGE_OPTIONS = (
    click.option(
        "--resize",
        "short_side",
        type=WHOLE,
        metavar="PIXELS",
        help="Shrink larger images to this shorter side.",
    ),
    click.option(
        "--quality",
        type=WHOLE,
        default=95,
        show_default=True,
        help="JPEG quality of resized images; repaired ones have 100.",
    ),
    click.option(
        "--jpeg",
        type=click.Choice(["untouched", "restart"]),
        default="untouched",
        show_default=True,
        help="restart: code every JPEG again with restart markers and the same pixels, so that loaders decode a crop "
        "without reading the rest; progressive images become baseline.",
    ),
    click.option(
        "--check",
        type=click.Choice(["decode", "header", "none"]),
        default="decode",
        show_default=True,
        help="How to check every image: decode it, read its header, or look at its first three bytes.",
    ),
    click.option(
        "--on-bad",
        type=click.Choice(["repair", "reject", "fail"]),
        default="repair",
        show_default=True,
        help="What to do with PNG, CMYK and the like. Truncated and undecodable images are always rejected.",
    ),
    click.option(
        "--apply-exif", is_flag=True, help="Turn images upright whose EXIF orientation is not 1, and encode them again."
    ),
    click.option(
        "--max-reject-ratio", type=Finite(0, 1), help="Largest share of images that may be rejected.  [default: 0]"
    ),
)


def shard_options(command: Command) -> Command:
    """Add the options that say how a dataset is cut into shards."""
    return _with(_SHARD_OPTIONS, command)


def image_options(command: Command) -> Command:
    """Add the options that say what is done to images; `image_policy` reads them."""
    return _with(_IMAGE_OPTIONS, command)


def pairs(_context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the values of a repeated option `NAME=VALUE`, sorted, as a callback of click."""
    found = [value.partition("=") for value in values]
    if not all(name and equals for name, equals, _ in found):
        raise click.BadParameter(f"expected {option.metavar}")
    return tuple(sorted((name, value) for name, _, value in found))


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def image_policy(options: JsonObject) -> ImagePolicy:
    """Remove the options of `image_options` from a command's, except the limit on rejections, and return them."""
    names = ("check", "on_bad", "apply_exif", "short_side", "quality", "jpeg")
    return ImagePolicy(**{name: options.pop(name) for name in names})


def plan_lines(plan: Plan) -> Iterator[str]:
    """Describe the splits of a plan."""
    before = "" if plan.options.images.short_side is None else " before --resize"
    for split in plan.splits:
        passes = FORMATS[plan.options.format].passes_written(split.repeat_stored)
        yield (
            f"  {split.name}: {counted(sum(split.shard_samples), 'sample')} in "
            f"{counted(len(split.shard_samples), 'shard')}, about {human_bytes(split.source_bytes * passes)}{before}; "
            f"an epoch makes {counted(split.repeat_count, 'pass')}, {split.repeat_stored} stored"
        )
    if not plan.classes:
        yield "  labels: none"
    if plan.features:
        yield f"  features: {', '.join(f'{name} ({described(feature)})' for name, feature in plan.features.items())}"


def split_line(split: SplitManifest) -> str:
    """Describe a finished split."""
    repaired, rejected = sum(split.repaired.values()), sum(split.rejected.values())
    return (
        f"{split.name}: {counted(split.samples, 'sample')}, {counted(len(split.shards), 'shard')}, "
        f"{human_bytes(split.num_bytes)}, "
        f"{repaired} repaired{_reasons(split.repaired)}, {rejected} rejected{_reasons(split.rejected)}"
    )


def _reasons(counts: dict[str, int]) -> str:
    return f" ({', '.join(f'{count} {reason}' for reason, count in counts.items())})" if counts else ""
