"""The example of Accelerate: begun by one process, and continued by two that reduce their gradients over gloo."""

import json
import os
import runpy
import socket
from pathlib import Path

from loaders import open_loader
from tests.support import warm
from tests.support.finished import finished_dataset

ROOT = Path(__file__).parents[2]


def run(world_size: int, *arguments: str) -> list[list[str]]:
    """The sorted keys of every step of all processes together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"USE_TORCH_XLA": "false", "OMP_NUM_THREADS": "1"}
    if world_size > 1:  # as torchrun and `accelerate launch` set them
        shared |= {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = ("tests.examples.test_train_with_accelerate", *arguments, "--image-size", "32", "--cpu")
    processes = []
    for rank in range(world_size):
        of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world_size > 1 else {}
        processes.append(warm.start(*words, environment={**os.environ, **shared, **of_rank}, folder=ROOT))
    ranks = []
    for process in processes:
        with process:
            out, errors = process.communicate(timeout=800)
        assert process.returncode == 0, errors[-3000:]
        ranks.append(json.loads(out.splitlines()[-1]))
    return [sorted(key for keys in step for key in keys) for step in zip(*ranks, strict=True)]


def test_two_processes_go_on_where_one_stopped(originals, tmp_path_factory, tmp_path):
    url = str(finished_dataset("imagenet-webdataset", originals, tmp_path_factory))
    with open_loader(url, batch_size=24, image_size=32) as loader:
        expected = [sorted(batch.keys) for _ in range(2) for batch in loader]
    checkpoint = str(tmp_path / "run")
    trained_on = run(1, url, checkpoint, "--steps", "3") + run(2, url, checkpoint, "--steps", "7")
    assert trained_on == expected[:7]


if __name__ == "__main__":
    print(json.dumps(runpy.run_path(str(ROOT / "examples/train_with_accelerate.py"))["main"]()))
