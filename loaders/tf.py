"""Batches as a `tf.data.Dataset`, in the loader's order.

    batches = dataset(loader).map(lambda batch: (tf.cast(batch["images"], tf.float32) / 255, batch["labels"]))
    model.fit(batches, steps_per_epoch=len(loader))

Shapes: N images of this rank, H = W = `image_size`, C = 3.
"""

from __future__ import annotations

import atexit
import base64
import json
import threading
from collections.abc import Iterator
from itertools import chain, repeat
from math import inf
from typing import TYPE_CHECKING, Any

from dataprep.arrays import NDArray, np
from dataprep.errors import UsageError, needing
from loaders.config import spans
from loaders.engine.batch import Batch
from loaders.engine.producer import image_shape
from loaders.loader import Loader

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["dataset"]


_END_S = 5.0
"""Longest wait for a running iterator when the interpreter ends, seconds: a lost bucket is noticed sooner."""


def dataset(loader: Loader, *, epochs: int | None = None) -> tf.data.Dataset:
    """Return the loader's batches, from its current position on; use one iterator at a time.

    The elements are dictionaries: `images` NHWC, uint8, 0..255; `labels` (N,) int64, -1 where an image has no label;
    `mask` (N,) bool, False where a row holds no sample; `keys` (N,) string; `fields`, an array (N, ...) for a column of
    arrays, else (N,) string, empty if a sample lacks it, JSON if it is neither text nor bytes; `state`, JSON for the
    loader's `load_state_dict`, to continue afterwards; `views` (N,) string, with the setting of this name: JSON of an
    image's crop, scale and flip. From a `ViewLoader`, `images` is a tuple, NVHWC for each group of views. tf.data runs
    ahead and cannot say how far, so after leaving an iterator early, load the state of the last used batch into the
    loader.

    Args:
        loader: Loader of this process.
        epochs: Number of epochs, the first of which is the rest of the current one; by default there is no end.

    Raises:
        UsageError: The loader delivers packs.
    """
    with needing("tf", "loaders.tf"):
        import tensorflow as tf

    config = loader.config
    if config.packs is not None:
        raise UsageError("loaders.tf has no packs; iterate over the loader itself, or use loaders.jax or loaders.torch")
    rows = (config.rows,)
    groups = tuple(tf.TensorSpec(each.shape, tf.uint8) for each in spans(config.view_groups, config.rows))
    types = {name: column.type for name, column in loader.dataset.columns.items() if not column.type.is_free}
    columns = {name: tf.TensorSpec((*rows, *kind.shape), kind.dtype) for name, kind in types.items()}
    signature = {
        "images": groups or tf.TensorSpec(image_shape(config), tf.uint8),
        "labels": tf.TensorSpec(rows, tf.int64),
        "mask": tf.TensorSpec(rows, tf.bool),
        "keys": tf.TensorSpec(rows, tf.string),
        "fields": {name: tf.TensorSpec(rows, tf.string) for name in config.fields} | columns,
        "state": tf.TensorSpec((), tf.string),
    }
    if config.views:
        signature["views"] = tf.TensorSpec(rows, tf.string)
    return tf.data.Dataset.from_generator(lambda: _elements(loader, epochs), output_signature=signature)


def _elements(loader: Loader, epochs: int | None) -> Iterator[dict[str, object]]:
    batches = _batches(loader, epochs)
    # A thread of tf.data that runs Python when the interpreter ends waits forever, and the process waits for it.
    ending, running = threading.Event(), threading.Lock()

    def end() -> None:
        ending.set()
        running.acquire(timeout=_END_S)

    atexit.register(end)
    try:
        while not ending.is_set():
            with running:
                batch = next(batches, None)
            if batch is None:
                return
            yield _element(batch)
    finally:
        atexit.unregister(end)


def _batches(loader: Loader, epochs: int | None) -> Iterator[Batch]:
    """Yield the batches of some epochs, or without end; a mixture may end earlier."""
    if not loader.config.shuffle:
        yield from chain.from_iterable(repeat(loader) if epochs is None else repeat(loader, epochs))
        return
    stop = inf if epochs is None else loader.epoch + epochs
    while len(loader) and loader.epoch < stop:
        yield from loader


def _element(batch: Batch) -> dict[str, object]:
    element: dict[str, object] = {
        "images": batch.images,
        "labels": batch.labels,
        "mask": batch.mask,
        "keys": batch.keys,
        "fields": {
            name: values if isinstance(values, np.ndarray) else [_text(value) for value in values]
            for name, values in batch.fields.items()
        },
        "state": json.dumps(batch.state),
    }
    if batch.views is not None:
        element["views"] = ["" if view is None else json.dumps(view._asdict()) for view in batch.views]
    return element


def _text(value: Any) -> str | bytes:
    if value is None:
        return ""
    return value if isinstance(value, str | bytes) else json.dumps(value, default=_as_json)


def _as_json(value: bytes | NDArray[Any]) -> Any:
    """Return bytes as base64 text, and an array, such as boxes that a transform changed, as lists."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value.tolist()
