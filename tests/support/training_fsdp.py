"""A small ViT on several virtual devices: what each of them holds, beside what the plan says. Run in its own process.

python -m tests.support.training_fsdp held DATA FOLDER     five steps, and bytes on every device, as JSON
python -m tests.support.training_fsdp exact DATA FOLDER    the same losses, bit for bit, after a stop, with dropout
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.training import ended, facts, flags_of, losses, start

if TYPE_CHECKING:
    from train.train_vit import TrainViT

SMALL = {
    "image_size": 16,
    "patch_size": 8,
    "embed_dim": 32,
    "num_heads": 2,
    "num_blocks": 1,
    "batch_size": 8,
    "num_epochs": 2,
    "warmup_steps": 3,
    "log_step_interval": 1,
    "num_workers": 2,
}
"""Flags of a run that a processor does in seconds."""
LONG = {**SMALL, "num_epochs": 30, "max_steps": 200, "ckpt_interval_steps": 10}
TOLERANCE = 1e-5
"""Relative tolerance of losses on other numbers of devices, whose sums are taken in another order."""


def held(data: str, folder: Path) -> dict[str, Any]:
    """Train five steps; bytes of weights and of the optimiser's moments on every device, as they are and as planned.

    Beside the checkpoints in parts stand the last weights as the devices put them together: `whole.pth`.
    """
    import torch
    import torch_xla.distributed.spmd as xs

    from train.loops.backend import plan_of
    from train.models.vit import VisionTransformer
    from train.optim.optimizer import moments_of
    from train.train_vit import open_training

    flags = flags_here(data_path=data, output_dir=str(folder), max_steps=5, ckpt_interval_steps=2)
    training = open_training(flags)
    training.run()
    training.backend.runtime.wait()
    torch.save({name: each.cpu() for name, each in training.backend.model.state_dict().items()}, folder / "whole.pth")
    found: dict[str, Counter[str]] = {"weights": Counter(), "moments": Counter()}
    tensors = {"weights": training.backend.model.parameters(), "moments": moments_of(training.backend.optimizer)}
    for kind, each in ((kind, each) for kind, group in tensors.items() for each in group):
        for shard in xs.wrap_if_sharded(each.detach()).local_shards:
            found[kind][shard.shard_device] += shard.data.nbytes
    copies = open_training(flags_here(data_path=data, output_dir=str(folder / "copies"), run_without_fsdp=True))
    kinds = {type(xs.wrap_if_sharded(each.detach())) for each in copies.backend.model.parameters()}
    # The run takes the number of classes from the data.
    classes = len(training.backend.model.state_dict()["head.bias"])
    config = replace(flags, num_classes=classes).model_config()
    plan = plan_of(VisionTransformer(config), training.backend.runtime.num_devices)
    return {
        **found,
        "gathered": training.backend.runtime.gather("tpu-w-é"),
        "not_finite": not_finite(training.backend),
        "planned": plan.bytes_per_device,
        "whole": plan.bytes,
        "is_sharded": xs.XLAShardedTensor in kinds,
        "checkpoints": type(copies.checkpoints).__name__,
    }


def not_finite(backend: Any) -> list[list[str]]:
    """Return the tensors that are not finite: at first, with a NaN on one device, and with an infinite moment there."""
    import torch

    model, optimizer = backend.model, backend.optimizer
    weights = {name.replace("_orig_module.", ""): each for name, each in model.named_parameters()}
    weight = weights["blocks.0.attn.qkv.weight"]
    moment = optimizer.state[weight]["exp_avg_sq"]
    answers = [backend.not_finite()]
    with torch.no_grad():
        for tensor, number in ((weight, float("nan")), (moment, float("inf"))):
            last = torch.zeros(tensor.shape)
            last[-1, -1] = number
            tensor.add_(last.to(tensor.device))
            backend.runtime.end_step()
            answers.append(backend.not_finite())
            tensor.zero_()
    return answers


def held_by(devices: int, data: str, folder: Path) -> dict[str, Any]:
    """What `held` says on so many devices, in a process of its own."""
    folder.mkdir(exist_ok=True)
    found: dict[str, Any] = facts(
        "tests.support.training_fsdp", "held", data, str(folder), CPU_NUM_DEVICES=str(devices)
    )
    return found


def exact(data: str, folder: Path, steps: int = 6) -> None:
    """Two runs, one of them stopped and gone on with."""
    from train.train_vit import open_training

    for name, stops in (("whole", (steps,)), ("stopped", (2, steps))):
        for stop in stops:
            dropout = {"pos_dropout": 0.1, "att_dropout": 0.1, "mlp_dropout": 0.1}
            training = open_training(
                flags_here(**dropout, data_path=data, output_dir=str(folder / name), max_steps=stop)
            )
            training.resume("automatic")
            training.run()
    found = losses(folder / "whole")
    assert list(found) == list(range(1, steps + 1))
    assert losses(folder / "stopped") == found


def flags_here(**flags: Any) -> TrainViT:
    """Return the flags of a small run on XLA in this process."""
    from train.train_vit import TrainViT

    names = {"num_epochs": "epochs", "log_step_interval": "log_interval_steps"}
    return TrainViT(**{names.get(name, name): value for name, value in SMALL.items()}, **flags, device="xla")


def long_runs(data: str, folder: Path, *, steps: int = 50, devices: tuple[int, ...] = (4, 8)) -> float:
    """The largest difference from one device's losses, of data parallel and FSDP runs."""
    common = {**SMALL, "data_path": data, "device": "xla", "num_epochs": 20, "max_steps": steps}
    expected = run(folder / "1", **common)
    assert list(expected) == list(range(1, steps + 1))
    differences = []
    for count in devices:
        for name, more in (("copies", ["--run_without_fsdp"]), ("fsdp", [])):
            found = run(folder / f"{count}-{name}", *more, CPU_NUM_DEVICES=count, **common)
            assert found == pytest.approx(expected, abs=TOLERANCE), f"{name} on {count} devices"
            differences.append(max(abs(found[step] - loss) for step, loss in expected.items()))
    return max(differences)


def many_devices(data: str, folder: Path, devices: int) -> str:
    """Losses are those of one device, and each of many holds its share of the weights."""
    difference = long_runs(data, folder, devices=(devices,))
    found = held_by(devices, data, folder / "held")
    assert set(found["weights"].values()) == {found["planned"]}, found
    return (
        f"copies and FSDP differ from one device by {difference:.1e} at most in 50 steps; a device holds "
        f"{found['planned']:,} of {found['whole']:,} bytes of weights"
    )


def run(folder: Path, *more: str, CPU_NUM_DEVICES: int = 1, **flags: Any) -> dict[int, float]:
    """Losses of a run in a process of its own."""
    arguments = [*flags_of(**flags), "--ckpt_dir", str(folder), *more]
    ended(start("train.train_vit", *arguments, CPU_NUM_DEVICES=str(CPU_NUM_DEVICES)))
    return losses(folder)


if __name__ == "__main__":
    if sys.argv[1] == "held":
        print(json.dumps(held(sys.argv[2], Path(sys.argv[3]))))
    else:
        exact(sys.argv[2], Path(sys.argv[3]))
