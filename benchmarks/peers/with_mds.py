"""(d) MosaicML's MDSWriter without compression and hashes, which is the default and the fastest.

With several processes each writes a subdirectory, and `merge_index` joins them, as its documentation on parallel
conversion says.
"""

from __future__ import annotations

from contest import Task, read_task, run_parts, sync_file
from streaming import MDSWriter
from streaming.base.util import merge_index

COLUMNS = {"image": "bytes", "key": "str", "label": "int"}


def write_part(task: Task, index: int) -> int:
    """Write the shards of one process with their index."""
    size_limit = task.shard_bytes() * 102 // 100  # the limit includes MDS's own bytes, and would make one more shard
    count = 0
    with MDSWriter(out=str(task.folder(index)), columns=COLUMNS, size_limit=size_limit) as writer:
        for image in task.images(index):
            writer.write({"image": image.data, "key": image.key, "label": image.label})
            count += 1
    return count


def main() -> None:
    task = read_task()
    run_parts(task, write_part)
    if task.processes > 1:
        merge_index(str(task.out), keep_local=True)
        sync_file(task.out / "index.json")


if __name__ == "__main__":
    main()
