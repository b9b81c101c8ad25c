"""litdata.optimize over a list of files, as its README shows it: the bytes of each file as they are, and its class."""

from __future__ import annotations

import json

import litdata
from contest import print_samples, read_task, sync_file


def sample(entry: tuple[str, str, int]) -> dict[str, object]:
    """Return what litdata stores of one picture."""
    path, key, label = entry
    return {"image": litdata.Image(path=path), "key": key, "class": label}


def main() -> None:
    task = read_task()
    litdata.optimize(
        fn=sample,
        inputs=[tuple(entry) for shard in task.shards for entry in shard],
        output_dir=str(task.out),
        num_workers=task.processes,
        chunk_bytes=task.shard_bytes(),
        start_method="fork",
        verbose=False,
    )
    for path in task.out.rglob("*"):
        sync_file(path)
    print_samples(sum(chunk["chunk_size"] for chunk in json.loads((task.out / "index.json").read_bytes())["chunks"]))


if __name__ == "__main__":
    main()
