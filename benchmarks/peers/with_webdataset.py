"""(b) webdataset's ShardWriter, used as in its documentation of ImageNet: an image and its label for each sample."""

from __future__ import annotations

import sys

from contest import Image, Task, read_task, run_parts, sync_file

# webdataset imports torch if it is installed, which takes three seconds and is needed only for reading.
sys.modules["torch"] = None  # type: ignore[assignment]
import webdataset  # noqa: E402


def write_part(task: Task, index: int) -> int:
    """Write the shards of one process; a reader joins all shards by a brace pattern."""
    pattern = str(task.folder(index) / "imagenet-train-%06d.tar")
    count = 0
    with webdataset.ShardWriter(pattern, maxsize=task.shard_bytes(), post=sync_file, verbose=0) as writer:
        for image in task.images(index):
            writer.write(sample(image))
            count += 1
    return count


def sample(image: Image) -> dict[str, object]:
    """Return a sample with only image, label and key."""
    return {"__key__": image.key, "jpg": image.data, "cls": image.label}


if __name__ == "__main__":
    run_parts(read_task(), write_part)
