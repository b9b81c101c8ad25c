"""litdata.optimize over a list of files, as its README shows it: the bytes of each file as they are, and its class."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import litdata
from contest import print_samples, sync_file


def sample(entry: tuple[str, str, int]) -> dict[str, object]:
    """Return what litdata stores of one picture."""
    path, key, label = entry
    return {"image": litdata.Image(path=path), "key": key, "class": label}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--order", type=Path, required=True, help="JSON: shards of [path, key, label]")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--check", choices=["none"], required=True)
    options = parser.parse_args()
    shards = json.loads(options.order.read_bytes())["shards"]
    entries = [tuple(entry) for shard in shards for entry in shard]
    shard_bytes = -(-sum(Path(path).stat().st_size for path, _, _ in entries) // len(shards))
    litdata.optimize(
        fn=sample,
        inputs=entries,
        output_dir=str(options.out),
        num_workers=options.processes,
        chunk_bytes=shard_bytes,
        start_method="fork",
        verbose=False,
    )
    for path in options.out.rglob("*"):
        sync_file(path)
    count = sum(chunk["chunk_size"] for chunk in json.loads((options.out / "index.json").read_bytes())["chunks"])
    print_samples(count)


if __name__ == "__main__":
    main()
