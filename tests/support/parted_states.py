"""States that are cut among hosts, and hosts that save them together."""

from __future__ import annotations

import threading

import torch

from train.checkpoints.parts import PartFolder, Pieces


def state(step: int) -> dict:
    weights = {"a": torch.arange(24.0).reshape(4, 6) + step, "b": torch.ones(3)}
    return {"step": step, "model": weights, "optimizer": {"state": {0: {"m": torch.arange(8)}}, "groups": [{"lr": 1}]}}


def cut_state(whole: dict, rank: int, world_size: int) -> dict:
    """What one of several hosts holds: some rows of `a`, some of `m`."""
    a, m = whole["model"]["a"], whole["optimizer"]["state"][0]["m"]

    def of(tensor):
        rows = len(tensor) // world_size
        start = (rank * rows, *[0] * (tensor.dim() - 1))
        return Pieces(tuple(tensor.shape), [(start, tensor[rank * rows : (rank + 1) * rows].clone())])

    optimizer = {"state": {0: {"m": of(m)}}, "groups": whole["optimizer"]["groups"]}
    return {**whole, "model": {**whole["model"], "a": of(a)}, "optimizer": optimizer}


def same(left: object, right: object) -> bool:
    return repr(left) == repr(right)


def save(url: str, step: int, world_size: int, **settings) -> None:
    """All hosts, at once, the first one before the others."""
    folders = [PartFolder(url, rank=rank, world_size=world_size, **settings) for rank in range(world_size)]
    jobs = [
        threading.Thread(target=folder.save, args=(step, cut_state(state(step), rank, world_size)))
        for rank, folder in enumerate(folders)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
