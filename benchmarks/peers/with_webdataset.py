"""(b) webdataset's ShardWriter, as its documentation writes an ImageNet: image and label beside each other."""

from __future__ import annotations

import sys

from contest import Image, Task, read_task, run_parts, sync_file

# webdataset imports torch where it finds it, for reading: three seconds that writing does not need.
sys.modules["torch"] = None  # type: ignore[assignment]
import webdataset  # noqa: E402


def write_part(task: Task, index: int) -> int:
    """One process's shards; a reader joins them by their brace pattern."""
    pattern = str(task.folder(index) / "imagenet-train-%06d.tar")
    count = 0
    with webdataset.ShardWriter(pattern, maxsize=task.shard_bytes(), post=sync_file, verbose=0) as writer:
        for image in task.images(index):
            writer.write(sample(image))
            count += 1
    return count


def sample(image: Image) -> dict[str, object]:
    """The least that holds an image, its label and its key."""
    return {"__key__": image.key, "jpg": image.data, "cls": image.label}


if __name__ == "__main__":
    run_parts(read_task(), write_part)
