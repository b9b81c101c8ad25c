"""Train on images, labels and captions with PyTorch, alone or under torchrun; a killed run continues exactly.
The dataset needs splits `train` and `val`, and a field `caption`. The number of ranks must divide 12."""

import os
import sys
import zlib
from pathlib import Path

import torch
import torch.distributed as dist

from dataprep.errors import DataprepError
from loaders import open_loader
from loaders.torch import TorchBatch, TorchBatches, normalize

BATCH, SIDE, WORDS, EPOCHS, SAVE_EVERY = 12, 64, 256, 3, 2  # BATCH images a step on all ranks, SAVE_EVERY steps


def inputs_of(batch: TorchBatch, device: torch.device) -> torch.Tensor:
    words_NW = torch.zeros(len(batch.keys), WORDS)
    for row, caption in enumerate(batch.fields["caption"]):  # None in rows that fill up the last batch of val
        words_NW[row, [zlib.crc32(word.encode()) % WORDS for word in (caption or "").split()]] = 1
    images_NCHW = normalize(batch.images.to(device), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    return torch.cat([images_NCHW.flatten(1), words_NW.to(device)], dim=1)


def main(url: str, checkpoint: str, init: str = "") -> None:
    if "RANK" in os.environ:  # torchrun started this process
        dist.init_process_group()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu")
    options = {"batch_size": BATCH, "image_size": SIDE, "fields": ("caption",), "rank": rank, "world_size": world_size}
    with open_loader(url, **options) as loader, open_loader(url, "val", **options) as validation:
        torch.manual_seed(0)  # the same first weights on every rank
        last = torch.nn.Linear(64, len(loader.dataset.manifest.classes))
        model = torch.nn.Sequential(torch.nn.Linear(3 * SIDE**2 + WORDS, 64), torch.nn.ReLU(), last).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        batches = TorchBatches(loader)
        parts = {"batches": batches, "model": model, "optimizer": optimizer}
        if Path(checkpoint).exists():  # on a disk that all ranks see; their number may have changed
            for name, state in torch.load(checkpoint, map_location=device).items():
                parts[name].load_state_dict(state)  # the batches first: a rebuilt dataset is refused
        elif init:  # the weights alone, but for layers of another shape: the last one, where there is a new class
            old, new = torch.load(init, map_location=device)["model"], model.state_dict()
            fitting = {name: old[name] for name in new if old[name].shape == new[name].shape}
            print(f"rank {rank}, {init}: {model.load_state_dict(fitting, strict=False)}\n", end="", flush=True)
        network = torch.nn.parallel.DistributedDataParallel(model) if world_size > 1 else model
        while (epoch := batches.epoch) < EPOCHS:
            for batch in batches:
                loss = torch.nn.functional.cross_entropy(network(inputs_of(batch, device)), batch.labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step, ended, said = batch.state["position"] // BATCH, batches.epoch > epoch, str(loss.item())
                if ended:  # evaluate before the end of the epoch is saved
                    right = torch.zeros((), device=device)
                    with torch.no_grad():  # and model.eval(), where layers such as dropout differ
                        for rows in TorchBatches(validation):
                            right += (model(inputs_of(rows, device)).argmax(1).cpu() == rows.labels)[rows.mask].sum()
                    if world_size > 1:
                        dist.all_reduce(right)
                    said += f", epoch ended, {right:.0f} of {validation.order.num_samples} right in val"
                print(f"rank {rank}, step {step}: {said}\n", end="", flush=True)  # one write keeps the line whole
                if rank == 0 and (step % SAVE_EVERY == 0 or ended):
                    torch.save({name: part.state_dict() for name, part in parts.items()}, f"{checkpoint}.new")
                    Path(f"{checkpoint}.new").replace(checkpoint)  # a kill leaves the old file or the new one
    print(f"rank {rank}: all {EPOCHS} epochs are done\n", end="", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except DataprepError as error:
        sys.exit(str(error))
