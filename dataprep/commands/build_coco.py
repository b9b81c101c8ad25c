"""`dataprep build coco`: the images of COCO 2017 with their annotations."""

from __future__ import annotations

from typing import Any

import click

from dataprep.arguments import StrictCommand
from dataprep.builder.plan import BuildOptions
from dataprep.builder.request import BuildRequest
from dataprep.commands.build import build_images
from dataprep.commands.build_options import image_options, image_policy, shard_options
from dataprep.commands.build_run import Run, refuse_unknown_runner, shared_options
from dataprep.errors import UsageError
from dataprep.messages import not_one_of
from dataprep.sources.coco import COCO, found_kinds
from dataprep.sources.coco_annotations import KINDS
from dataprep.storage import open_originals

NONE = "none"
EPILOG = """\b
Examples:
  dataprep build coco --source originals --output coco --format webdataset
  dataprep build coco --source gs://bucket/originals --output gs://bucket/coco --format tfrecord --check-source
  dataprep build coco --source originals --output captions --format webdataset --annotations captions --split val
  dataprep build coco --source originals --output people --format tfrecord --annotations keypoints
  dataprep build coco --source originals --output images --format imagefolder --annotations none --split test

\b
The source holds train2017.zip and val2017.zip, or the unpacked folders, and annotations_trainval2017.zip and
panoptic_annotations_trainval2017.zip, or their files unpacked in annotations/.

\b
A loader reads the annotations with fields=("captions", "objects", "person_keypoints", "panoptic_objects"), and
loaders.transform_boxes carries boxes through its crops. Boxes are those of the original files, also with --resize:
original_height and original_width are the sizes to which they belong.

\b
After an interruption, a crash or a full disk run the same command again: it builds only what is missing, and the
result has the same bytes.
"""


@click.command("coco", cls=StrictCommand, epilog=EPILOG)
@click.argument("engine_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE_OPTIONS]")
@click.option("--source", required=True, metavar="URL", help="Folder or gs:// prefix that holds the original files.")
@click.option(
    "--annotations",
    "kinds",
    multiple=True,
    type=click.Choice([*KINDS, NONE]),
    help="Take these annotations only; may be repeated.  [default: all whose files are there]",
)
@shard_options
@image_options
@click.option(
    "--allow-partial",
    is_flag=True,
    help="Accept other counts of images and annotations than the published ones, and record that.",
)
@click.option(
    "--check-source",
    "compare",
    is_flag=True,
    help="First compare size and MD5 of the archives with the published ones.",
)
@shared_options
def command(
    engine_options: tuple[str, ...],
    run: Run,
    source: str,
    output: str,
    format_name: str,
    splits: tuple[str, ...],
    kinds: tuple[str, ...],
    overwrite: bool,
    compare: bool,
    max_reject_ratio: float | None,
    **options: Any,
) -> None:
    """Build COCO 2017: images with captions, objects, person keypoints and panoptic segments.

    Images are read as byte ranges of the archives, which are not unpacked. A valid RGB or grey JPEG keeps its bytes.
    Annotations keep their values: boxes are [x, y, width, height] in pixels, and segmentations are the JSON of their
    polygons or run-length encodings.
    """
    refuse_unknown_runner(run, engine_options)
    splits = splits or COCO.default_splits
    for split in splits:
        if split not in COCO.splits:
            raise UsageError(not_one_of("--split", split, COCO.splits))
    images = image_policy(options)
    annotations = _annotations(source, kinds, splits)
    if images.apply_exif and annotations:
        raise UsageError("--apply-exif turns images but not their boxes; leave it out, or add --annotations none")
    request = BuildRequest(
        options=BuildOptions(
            dataset=COCO.name, format=format_name, splits=splits, images=images, annotations=annotations, **options
        ),
        source_url=source,
        output_url=output,
        max_reject_ratio=COCO.default_max_reject_ratio if max_reject_ratio is None else max_reject_ratio,
        overwrite=overwrite,
    )
    build_images(request, run, engine_options, compare=compare)


def _annotations(source: str, kinds: tuple[str, ...], splits: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds of annotations to take; by default those whose files are there."""
    if NONE in kinds:
        if len(kinds) > 1:
            raise UsageError("--annotations none excludes other kinds; leave one of them out")
        return ()
    return tuple(sorted(set(kinds))) or found_kinds(open_originals(source), splits)
