"""Original files to references: which datasets there are."""

from difflib import get_close_matches

from dataprep.errors import UsageError
from dataprep.sources.base import ArchiveFacts, Dataset, SourceCheck, SplitFacts
from dataprep.sources.coco import COCO_DUP5
from dataprep.sources.fake import IMAGENET_FAKE, FakeImageNet
from dataprep.sources.imagenet import IMAGENET
from dataprep.sources.laion import LAION

__all__ = [
    "BUILT",
    "DATASETS",
    "ArchiveFacts",
    "Dataset",
    "FakeImageNet",
    "SourceCheck",
    "SplitFacts",
    "dataset_named",
    "sized_dataset",
]

DATASETS: dict[str, Dataset] = {
    "coco-dup5": COCO_DUP5,
    "imagenet": IMAGENET,
    "imagenet-fake": IMAGENET_FAKE,
}
"""Those whose originals are images."""
BUILT: dict[str, Dataset] = DATASETS | {LAION.name: LAION}
"""All that a manifest may name: laion's originals are tables of URLs."""


def dataset_named(name: str) -> Dataset:
    """The dataset of a name. Raises UsageError, with the choices and the nearest one, for an unknown name."""
    if name in DATASETS:
        return DATASETS[name]
    near = get_close_matches(name.lower().replace("_", "-"), DATASETS, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(f"unknown dataset {name!r}: expected one of {', '.join(DATASETS)}{hint}")


def sized_dataset(name: str, fake_images: int | None) -> Dataset:
    """The dataset of a build: of imagenet-fake the one of so many images.

    Raises:
        UsageError: The name is unknown, or a dataset with originals was given a size.
    """
    dataset = dataset_named(name)
    if fake_images is None:
        return dataset
    if isinstance(dataset, FakeImageNet):
        return dataset.with_images(fake_images)
    raise UsageError(f"--images {fake_images}: {name} has as many images as its originals; leave it out")
