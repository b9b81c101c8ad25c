"""Datasets that tensorflow-datasets prepared: where the newest version of one lies."""

from __future__ import annotations

import re

from dataprep.errors import UsageError
from dataprep.storage import open_storage

_TFDS_INFO = "dataset_info.json"
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def find_tfds(root: str, name: str) -> str:
    """Find the newest version of a dataset that tensorflow-datasets prepared.

    Args:
        root: Folder of the version, folder of the dataset, or folder that holds the dataset's.
        name: Name of the dataset; may be empty.

    Raises:
        UsageError: There is no such dataset.
    """
    # The name comes first, so that other datasets in the root need not be listed.
    for place in (f"{root.rstrip('/')}/{name}", root) if name else (root,):
        storage = open_storage(place)
        if storage.stat(_TFDS_INFO) is not None:
            return place
        parts = [info.name.split("/") for info in storage.list()]
        versions = {
            part[0] for part in parts if len(part) == 2 and part[1] == _TFDS_INFO and _VERSION.fullmatch(part[0])
        }
        if versions:
            newest = max(versions, key=lambda version: [int(number) for number in version.split(".")])
            return f"{place.rstrip('/')}/{newest}"
    raise UsageError(
        f"--config.dataset.root {root}: has no {_TFDS_INFO}, nor has a version of {name or 'the dataset'} below it; "
        "give a folder that tensorflow-datasets prepared, or leave use_tfds out"
    )
