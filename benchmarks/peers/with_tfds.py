"""(c) A TFDS GeneratorBasedBuilder with the features of our TFRecords.

With several processes each generates a folder of its own; `tfds.builder_from_directories` reads them as one dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from contest import Task, read_task, run_parts


class Imagenet(tfds.core.GeneratorBasedBuilder):
    """Dataset of the originals in the given order."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, *, task: Task, index: int) -> None:
        self._task, self._index = task, index
        super().__init__(data_dir=task.folder(index))

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.FeaturesDict(
            {
                "height": tfds.features.Scalar(np.int64),
                "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
                "key": tfds.features.Text(),
                "label": tfds.features.ClassLabel(names=self._task.classes),
                "orientation": tfds.features.Scalar(np.int64),
                "width": tfds.features.Scalar(np.int64),
            }
        )
        # The order is shuffled already, as for all contenders.
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for image in self._task.images(self._index):
            yield (
                image.position,
                {
                    "height": image.height,
                    "image": image.data,
                    "key": image.key,
                    "label": image.label,
                    "orientation": image.orientation,
                    "width": image.width,
                },
            )


def write_part(task: Task, index: int) -> int:
    """Write the part of the dataset of one process."""
    builder = Imagenet(task=task, index=index)
    config = tfds.download.DownloadConfig(num_shards=len(task.part(index)), try_download_gcs=False)
    builder.download_and_prepare(file_format="tfrecord", download_config=config)
    return builder.info.splits["train"].num_examples


if __name__ == "__main__":
    tfds.disable_progress_bar()
    run_parts(read_task(), write_part)
