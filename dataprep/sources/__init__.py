"""Lists the images in original files as references: one class for each dataset that can be built.

Nothing is unpacked: a tar in a tar, and a stored member of a zip, are byte ranges of the archive. A reference names the
archive, offset and size of one image, its key and its label.

Archives are hostile input. Names of members never become paths outside the target, because keys have an alphabet
(`keys.py`). Sizes are compared with the archive's before anything is allocated. Compressed members of zips are refused
instead of inflated, and so are links in archives; links in folders are followed only where they stay inside, except for
the folder that the user named.
"""

from dataprep.dataset.features import Feature
from dataprep.errors import UsageError
from dataprep.messages import did_you_mean
from dataprep.sources.base import ArchiveFacts, Dataset, SourceCheck, SplitFacts
from dataprep.sources.coco import COCO, COCO_DUP5, AnnotatedCoco
from dataprep.sources.custom import Image, ImageDataset, custom_dataset, images_in
from dataprep.sources.fake import IMAGENET_FAKE, FakeImageNet
from dataprep.sources.folder import FOLDER
from dataprep.sources.imagenet import IMAGENET
from dataprep.sources.imagenet21k import IMAGENET_21K
from dataprep.sources.laion import LAION
from dataprep.sources.own import CLASS_NAME, CONVERTED, FINISHED, FinishedDataset, OwnData, OwnDataset, name_fault
from dataprep.sources.table import TABLE

__all__ = [
    "BUILT",
    "DATASETS",
    "OWN",
    "AnnotatedCoco",
    "ArchiveFacts",
    "Dataset",
    "FakeImageNet",
    "Feature",
    "FinishedDataset",
    "Image",
    "ImageDataset",
    "OwnData",
    "OwnDataset",
    "SourceCheck",
    "SplitFacts",
    "configured",
    "dataset_named",
    "images_in",
    "own_name_fault",
    "recorded_class",
]

DATASETS: dict[str, Dataset] = {
    "coco": COCO,
    "coco-dup5": COCO_DUP5,
    "imagenet": IMAGENET,
    "imagenet-21k": IMAGENET_21K,
    "imagenet-fake": IMAGENET_FAKE,
}
"""Published datasets whose original files hold images, by name."""
OWN: dict[str, OwnDataset] = {"folder": FOLDER, "table": TABLE}
"""Kinds of a user's own data, by name."""
BUILT: dict[str, Dataset] = {**DATASETS, **OWN, LAION.name: LAION}
"""All datasets that can be built: DATASETS, OWN, and laion, whose original files are tables of URLs."""


def dataset_named(name: str) -> Dataset:
    """Return the dataset of a name. Raises UsageError, with the choices and the nearest one, for an unknown name."""
    if name in DATASETS:
        return DATASETS[name]
    hint = did_you_mean(name.replace("_", "-"), DATASETS, cutoff=0.4)
    raise UsageError(f"unknown dataset {name!r}: expected one of {', '.join(DATASETS)}{hint}")


def recorded_class(name: str) -> Dataset | None:
    """Return the class of the dataset that a plan or a manifest names, without importing what is no part of dataprep.

    Args:
        name: Name of a dataset, `converted`, or `module:NAME` of somebody's own class, of which nothing but its name is
            needed once its dataset is planned.
    """
    if name in BUILT:
        return BUILT[name]
    if name == CONVERTED.name:
        return CONVERTED
    return FINISHED if CLASS_NAME.fullmatch(name) else None


def configured(
    name: str,
    *,
    fake_images: int | None = None,
    own: OwnData | None = None,
    annotations: tuple[str, ...] | None = None,
) -> Dataset:
    """Return the dataset of a build, configured by the build's options.

    Args:
        name: One of DATASETS or OWN, `converted`, or `module:NAME` of somebody's own class.
        fake_images: Number of images of imagenet-fake.
        own: What the user says of their own data.
        annotations: Kinds of annotations of coco.

    Raises:
        UsageError: The name is unknown, or a dataset with originals was given a size.
    """
    if name in OWN or name == CONVERTED.name or CLASS_NAME.fullmatch(name):
        kind = custom_dataset(name) if CLASS_NAME.fullmatch(name) else OWN.get(name, CONVERTED)
        return kind if own is None else kind.described_by(own)
    dataset = dataset_named(name)
    if isinstance(dataset, AnnotatedCoco) and annotations is not None:
        dataset = dataset.with_annotations(annotations)
    elif annotations is not None:
        raise UsageError(f"annotations {', '.join(annotations) or 'none'}: only coco has some; leave them out")
    if fake_images is None:
        return dataset
    if isinstance(dataset, FakeImageNet):
        return dataset.with_images(fake_images)
    raise UsageError(f"--images {fake_images}: {name} has as many images as its originals; leave it out")


def own_name_fault(name: str) -> str:
    """Return why a user's own dataset cannot have this name; empty if it can."""
    return name_fault(name, frozenset(BUILT))
