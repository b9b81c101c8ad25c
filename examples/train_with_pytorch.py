"""Train on images, labels and captions with PyTorch, alone or under torchrun; a run that was killed goes on exactly."""

import os
import sys
import zlib
from pathlib import Path

import torch
import torch.distributed as dist

from loaders import open_loader
from loaders.torch import TorchBatches, normalize

BATCH, SIDE, WORDS, EPOCHS, SAVE_EVERY = 12, 64, 256, 3, 2  # BATCH images a step on all ranks, SAVE_EVERY steps
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def words_of(captions: list[str]) -> torch.Tensor:
    words_NW = torch.zeros(len(captions), WORDS)
    for row, caption in enumerate(captions):
        words_NW[row, [zlib.crc32(word.encode()) % WORDS for word in caption.split()]] = 1
    return words_NW


def main(url: str, checkpoint: str) -> None:
    if "RANK" in os.environ:  # torchrun started this process
        dist.init_process_group()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu")
    ranks = {"rank": rank, "world_size": world_size}
    with open_loader(url, batch_size=BATCH, image_size=SIDE, fields=("caption",), **ranks) as loader:
        torch.manual_seed(0)  # the same first weights on every rank
        model = torch.nn.Linear(3 * SIDE**2 + WORDS, len(loader.dataset.manifest.classes)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        parts = {"model": model, "optimizer": optimizer, "batches": TorchBatches(loader)}
        if Path(checkpoint).exists():  # on a disk that all ranks see; their number may have changed
            for name, state in torch.load(checkpoint, map_location=device).items():
                parts[name].load_state_dict(state)
        network = torch.nn.parallel.DistributedDataParallel(model) if world_size > 1 else model
        while (epoch := loader.epoch) < EPOCHS:
            for batch in parts["batches"]:
                images_NCHW = normalize(batch.images.to(device), mean=MEAN, std=STD)
                words_NW = words_of(batch.fields["caption"]).to(device)
                scores_NK = network(torch.cat([images_NCHW.flatten(1), words_NW], dim=1))
                loss = torch.nn.functional.cross_entropy(scores_NK, batch.labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step, ended = batch.state["position"] // BATCH, loader.epoch > epoch
                print(f"rank {rank}, step {step}: {loss.item()}{', epoch ended' if ended else ''}", flush=True)
                if rank == 0 and (step % SAVE_EVERY == 0 or ended):  # evaluate before the end of an epoch is saved
                    torch.save({name: part.state_dict() for name, part in parts.items()}, f"{checkpoint}.new")
                    Path(f"{checkpoint}.new").replace(checkpoint)  # a kill leaves the old file or the new one
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
