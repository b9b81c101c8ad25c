"""Deterministic, elastic, resumable loaders over datasets, and over plain data such as pictures or tars.

    with loaders.open_loader("gs://bucket/imagenet", batch_size=1024, rank=rank, world_size=hosts) as loader:
        for batch in loader:  # one epoch
            step(batch.images, batch.labels)
            save(batch.state)  # loader.load_state_dict(state) resumes after this batch

open_loader      Open a loader over one split of a dataset.
open_packs       Open a loader of images at their own aspect ratio, as patches in rows of one length.
Packs            Length of the rows, number of images in a row, and sizes of the images.
PackLoader, PackBatch  A Loader whose batches are packs, and a Batch of patches, with segments, positions and masks.
open_views, Views  Open a loader of several views of each image: groups of random crops, made from one decode.
ViewLoader, ViewBatch  A Loader whose batches have such views, and a Batch with an array of images for each group.
Loader           Iterates over batches, one epoch at a time; load_state_dict, set_epoch, stats, close.
Batch            Images (uint8, NHWC), labels, keys, mask, fields and the state after one step.
LoaderConfig, LoaderSettings  Settings with their meanings, help(loaders.LoaderConfig), and their types for mypy.
MetricsCallback  Gives a loader's metrics to a function such as wandb.log, every few steps.
AlbumentationsTransform, PilTransform, TorchvisionTransform  Turn a library's transforms into the setting `transform`.
AnnotationTransform, AnnotationFields, Annotations  Carry boxes, masks and keypoints through the setting `transform`.
open_decoder     Open the JPEG decoder that loaders use; its `name` says which one it is.
mixture, Mixture  Describe several datasets with weights; `open_loader` then draws every batch from them.
MixtureSource    One dataset of a mixture: its URL, weight, split, name, and what happens at its end.
read_fields      Read fields such as a caption from the bytes of one record.
RowView          Crop, scale and flip that made an image a row of a batch, with open_loader(views=True).
transform_boxes, transform_keypoints, transform_points  Carry annotations to the pixels of a row.
transform_masks, transform_polygons  Draw COCO segmentations in the pixels of a row, or clip their polygons to it.

The adapters for frameworks are separate modules: loaders.torch, loaders.xla, loaders.jax, loaders.tf and
loaders.grain.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataprep.formats.fields import read_fields
    from loaders.config import LoaderConfig, LoaderSettings, Views
    from loaders.decode.annotations import (
        AnnotationFields,
        Annotations,
        AnnotationTransform,
        transform_boxes,
        transform_keypoints,
        transform_masks,
        transform_points,
        transform_polygons,
    )
    from loaders.decode.crop import RowView
    from loaders.decode.decoders import open_decoder
    from loaders.decode.transforms import AlbumentationsTransform, PilTransform, TorchvisionTransform
    from loaders.engine.batch import Batch, PackBatch, ViewBatch
    from loaders.loader import Loader, PackLoader, ViewLoader, open_loader, open_packs, open_views
    from loaders.metrics.callback import MetricsCallback
    from loaders.mixtures.dataset import MixtureSource
    from loaders.mixtures.loader import Mixture, mixture
    from loaders.packs import Packs

__all__ = [
    "AlbumentationsTransform",
    "AnnotationFields",
    "AnnotationTransform",
    "Annotations",
    "Batch",
    "Loader",
    "LoaderConfig",
    "LoaderSettings",
    "MetricsCallback",
    "Mixture",
    "MixtureSource",
    "PackBatch",
    "PackLoader",
    "Packs",
    "PilTransform",
    "RowView",
    "TorchvisionTransform",
    "ViewBatch",
    "ViewLoader",
    "Views",
    "mixture",
    "open_decoder",
    "open_loader",
    "open_packs",
    "open_views",
    "read_fields",
    "transform_boxes",
    "transform_keypoints",
    "transform_masks",
    "transform_points",
    "transform_polygons",
]

_PLACES = {
    "dataprep.formats.fields": ("read_fields",),
    "loaders.config": ("LoaderConfig", "LoaderSettings", "Views"),
    "loaders.decode.annotations": (
        *("AnnotationFields", "AnnotationTransform", "Annotations", "transform_boxes", "transform_keypoints"),
        *("transform_masks", "transform_points", "transform_polygons"),
    ),
    "loaders.decode.crop": ("RowView",),
    "loaders.decode.decoders": ("open_decoder",),
    "loaders.decode.transforms": ("AlbumentationsTransform", "PilTransform", "TorchvisionTransform"),
    "loaders.engine.batch": ("Batch", "PackBatch", "ViewBatch"),
    "loaders.loader": ("Loader", "PackLoader", "ViewLoader", "open_loader", "open_packs", "open_views"),
    "loaders.metrics.callback": ("MetricsCallback",),
    "loaders.mixtures.dataset": ("MixtureSource",),
    "loaders.mixtures.loader": ("Mixture", "mixture"),
    "loaders.packs": ("Packs",),
    "loaders.torch": ("TorchBatches", "TorchSamples"),
}
"""Public names by module, and two names of PyTorch's that users look for here; `import *` leaves these out."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import loaders` is cheap."""
    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'loaders' has no attribute {name!r}")
