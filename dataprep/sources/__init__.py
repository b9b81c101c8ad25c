"""Lists the images in original files as references: one class for each dataset that can be built.

Nothing is unpacked: a tar in a tar, and a stored member of a zip, are byte ranges of the archive. A reference names the
archive, offset and size of one image, its key and its label.

base.py                             what a dataset is, published or a user's own; archives.py, folders.py and keys.py
                                    read archives and folders, and make keys of names
coco.py                             COCO 2017; coco_files.py opens its annotations, coco_annotations.py groups them
imagenet.py                         ImageNet, ImageNet-21k and imagenet-fake; imagenet_labels.py has the labels of val
folder.py                           a user's tree, listed by tree.py; pictures.py makes rows of metadata
                                    into labels and features
table.py                            a user's tables: image_tables.py finds columns, rows and images, tables.py reads
                                    files, unpacked.py unpacks images
custom.py, existing.py, laion.py    a user's own class; a dataset that is converted; tables of URLs

Archives are hostile input. Names of members never become paths outside the target, because keys have an alphabet
(`keys.py`). Sizes are compared with the archive's before anything is allocated. Compressed members of zips are refused
instead of inflated, and so are links in archives; links in folders are followed only if they stay inside, except for
the folder that the user named.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dataprep.dataset.features import Feature
from dataprep.errors import UsageError
from dataprep.messages import did_you_mean
from dataprep.sources import base
from dataprep.sources.base import SplitFacts

if TYPE_CHECKING:
    from dataprep.sources.custom import Image, ImageDataset, images_in

__all__ = ["BUILT", "DATASETS", "OWN", "Feature", "Image", "ImageDataset", "SplitFacts", "configured", "images_in"]


class _OnDemand(UserDict[str, Any]):
    """Datasets by name, imported when they are looked up, so that a build imports only its own; `data` has the module
    of this package and the name in it, `module:NAME`, of each."""

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = self.data[name].partition(":")
        return getattr(import_module(f"{__name__}.{module}"), attribute)


_DATASETS = {
    "coco": "coco:COCO",
    "coco-dup5": "coco:COCO_DUP5",
    "imagenet": "imagenet:IMAGENET",
    "imagenet-21k": "imagenet:IMAGENET_21K",
    "imagenet-fake": "imagenet:IMAGENET_FAKE",
}
_OWN = {"folder": "folder:FOLDER", "table": "table:TABLE"}
DATASETS: Mapping[str, base.Dataset] = _OnDemand(_DATASETS)
"""Published datasets whose original files hold images, by name."""
OWN: Mapping[str, base.OwnDataset] = _OnDemand(_OWN)
"""Kinds of user data, by name."""
BUILT: Mapping[str, base.Dataset] = _OnDemand({**_DATASETS, **_OWN, "laion": "laion:LAION"})
"""All datasets that can be built: DATASETS, OWN, and laion, whose original files are tables of URLs."""
_OF_CUSTOM = ("Image", "ImageDataset", "images_in")


def __getattr__(name: str) -> Any:
    """Import a name that user-defined dataset classes need when it is first used."""
    if name not in _OF_CUSTOM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.custom"), name)


def dataset_named(name: str) -> base.Dataset:
    """Return the dataset with this name. Raises UsageError, with the choices and the nearest one, if it is unknown."""
    if name in DATASETS:
        return DATASETS[name]
    hint = did_you_mean(name.replace("_", "-"), DATASETS, cutoff=0.4)
    raise UsageError(f"unknown dataset {name!r}: expected one of {', '.join(DATASETS)}{hint}")


def recorded_class(name: str) -> base.Dataset | None:
    """Return the class of the dataset that a plan or a manifest names; `module:NAME` is not imported, because once a
    dataset is planned, only the name of the user's class is needed."""
    if name in BUILT:
        return BUILT[name]
    if name == base.CONVERTED.name:
        return base.CONVERTED
    return base.FINISHED if base.CLASS_NAME.fullmatch(name) else None


def configured(
    name: str,
    *,
    fake_images: int | None = None,
    own: base.OwnData | None = None,
    annotations: tuple[str, ...] | None = None,
) -> base.Dataset:
    """Return the dataset of a build, configured by the build's options; `name` is one of DATASETS or OWN, `converted`,
    or `module:NAME`. Raises UsageError if it is unknown, or a size was given for another dataset than imagenet-fake."""
    if base.CLASS_NAME.fullmatch(name):
        from dataprep.sources.custom import custom_dataset

        kind: base.OwnDataset = custom_dataset(name)
        return kind if own is None else kind.described_by(own)
    if name in OWN or name == base.CONVERTED.name:
        kind = base.CONVERTED if name == base.CONVERTED.name else OWN[name]
        return kind if own is None else kind.described_by(own)
    dataset = dataset_named(name)
    if annotations is not None:
        from dataprep.sources.coco import AnnotatedCoco

        if not isinstance(dataset, AnnotatedCoco):
            raise UsageError(f"annotations {', '.join(annotations) or 'none'}: only coco has any; leave them out")
        dataset = dataset.with_annotations(annotations)
    if fake_images is None:
        return dataset
    from dataprep.sources.imagenet import FakeImageNet

    if isinstance(dataset, FakeImageNet):
        return dataset.with_images(fake_images)
    raise UsageError(f"`images` {fake_images}: {name} has a fixed number of images, from its originals; leave it out")


def own_name_fault(name: str) -> str:
    """Return the reason that a user's own dataset cannot have this name; empty if it can."""
    return base.name_fault(name, frozenset(BUILT))
