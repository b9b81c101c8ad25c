"""Batches of several views in a form that can be compared; and through each adapter, in a process of its own.

python -m tests.support.view_batches jax tf URL        prints a list for each: (keys, shapes, sums) of every batch
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from loaders import Mixture, ViewBatch, ViewLoader, Views, open_views

GROUPS = (Views(count=2, size=48, min_area=0.4), Views(count=3, size=24, min_area=0.05, max_area=0.4))

ViewRow = tuple[str, int, str]
"""Key, label, and digest of all views of an image."""


def view_rows(batch: ViewBatch) -> list[ViewRow]:
    """The rows of a batch."""
    return [
        (key, label, hashlib.sha256(b"".join(group[row].tobytes() for group in batch.images)).hexdigest()[:16])
        for row, (key, label) in enumerate(zip(batch.keys, batch.labels.tolist(), strict=True))
    ]


def load_views(url: object, count: int | None, **settings: Any) -> list[list[ViewRow]]:
    """The rows of the first batches; of the whole epoch without a count."""
    found: list[list[ViewRow]] = []
    with open_views(url if isinstance(url, Mixture) else str(url), **settings) as loader:
        while True:
            for batch in loader:
                found.append(view_rows(batch))
                if len(found) == count:
                    return found
            if count is None:
                return found


def _batches(kind: str, loader: ViewLoader) -> Iterator[tuple[list[str], Any]]:
    """Keys, and arrays of the groups, of two epochs."""
    if kind == "torch":
        from loaders.torch import TorchViewBatch, rest_of_epoch

        for batch in chain(rest_of_epoch(loader), rest_of_epoch(loader)):
            assert isinstance(batch, TorchViewBatch)
            yield batch.keys, batch.to("cpu").images
    elif kind == "xla":
        from loaders.torch import TorchViewBatch
        from loaders.xla import device_batches

        for batch in chain.from_iterable(device_batches(loader) for _ in range(2)):
            assert isinstance(batch, TorchViewBatch)
            assert all(images.device.type == "xla" for images in batch.images)
            yield batch.keys, [images.cpu() for images in batch.images]
    elif kind == "jax":
        import jax
        import numpy as np

        from loaders.jax import JaxViewBatch, device_batches

        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
        for batch in chain.from_iterable(device_batches(loader, mesh) for _ in range(2)):
            assert isinstance(batch, JaxViewBatch)
            yield batch.keys, batch.images
    else:
        from loaders.tf import dataset

        for element in dataset(loader, epochs=2):
            yield [key.decode() for key in element["keys"].numpy()], element["images"]


def described(groups: Iterable[Any]) -> tuple[list[list[int]], list[int]]:
    """Shapes of groups of views, and sums of their pixels."""
    import numpy as np

    arrays = [np.asarray(group) for group in groups]
    return [list(array.shape) for array in arrays], [int(array.sum(dtype=np.int64)) for array in arrays]


def main() -> None:
    """Print what adapters deliver."""
    _, *kinds, url = sys.argv
    reports = []
    for kind in kinds:
        with open_views(url, batch_size=32, views=GROUPS, threads=1) as loader:
            reports.append([(keys, *described(groups)) for keys, groups in _batches(kind, loader)])
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
