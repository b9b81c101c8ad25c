"""Compare this tree with another one: the same bytes, batches and losses from the same input.

    git worktree add ../before 1f0e65d && python scripts/compare_with.py ../before          # all of it, 20 minutes
    python scripts/compare_with.py ../before --only build --images 200

Each tree runs in processes of its own with the packages of this environment, one after the other:

build  every dataset in every format, from the same originals; LAION from one server on loopback. The SHA-256 of every
       file outside of `_build/` must be equal, except for the cards README.md and croissant.json, and _info.json:
       no digest covers them. The number of shards is given, since its default has changed.
load   the other tree's datasets by both loaders: images, labels, keys and masks of every batch of two epochs, and the
       fields that their states share, except for the plan's hash, of which a state may hold the first digits.
train  every training entry for some steps: losses and learning rates. Then the other tree's run is stopped, and this
       tree resumes it from its checkpoint: the losses must equal those of the run that was not stopped.

Prints one line a comparison; exits 1 where one differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

from tests.support.picture_web import picture_web  # noqa: E402

FORMATS = ("webdataset", "tfrecord", "imagefolder")
LIMITS = ("--allow-partial", "--max-reject-ratio", "0.2")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "NPROC": "1",
    "PJRT_DEVICE": "CPU",
    "CPU_NUM_DEVICES": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
"""Environment with one thread for each framework: sums over several threads may differ in their last digits."""

LOADER = """
import hashlib, json, sys
from loaders import open_loader

with open_loader(sys.argv[1], batch_size=12, image_size=48, **json.loads(sys.argv[2])) as loader:
    for _ in range(2):
        for batch in loader:
            images = hashlib.sha256(batch.images.tobytes()).hexdigest()
            print(json.dumps([images, batch.labels.tolist(), batch.keys, batch.mask.tolist(), batch.state]))
"""
LOADERS = (
    {},
    {"interpolation": "bilinear", "seed": 3, "processes": 2},
    {"shuffle": False, "augment": False, "decoder": "library"},
    {"world_size": 3, "rank": 1, "clip_crop": True, "interpolation": "bilinear-no-antialias"},
)
TRAINED = {
    "train.pretrain_mae": (
        "--data_path={data} --output_dir={folder} --model=mae_vit_micro_patch8 --input_size=32 --epochs=3 "
        "--effective_batch_size=8 --warmup_epochs=1 --blr=0.05 --log_interval_steps=1 --num_workers=2 "
        "--device={device}",
        "--max_steps=9",
        "--resume=automatic",
    ),
    "train.finetune_mae": (
        "--data_path={data} --output_dir={folder} --model=vit_micro_patch8 --input_size=32 --epochs=3 --mixup=0.8 "
        "--effective_batch_size=8 --warmup_epochs=1 --blr=0.05 --log_interval_steps=1 --num_workers=0 --cutmix=1.0 "
        "--drop_path=0.2 --device={device}",
        "--max_steps=9",
        "--resume=automatic",
    ),
    "train.train_vit": (
        "--data_path={data} --ckpt_dir={folder} --image_size=16 --patch_size=8 --embed_dim=32 --num_heads=2 "
        "--num_blocks=1 --batch_size=8 --num_epochs=2 --warmup_steps=3 --lr=0.001 --log_step_interval=1 "
        "--num_workers=2 --device={device}",
        "--max_steps=9",
        "--resume=automatic",
    ),
    "train.train_resnet": (
        "--data_path={data} --output_dir={folder} --model=shufflenet_v2_x0_5 --image_size=32 --batch_size=8 --epochs=2 "
        "--lr=0.02 --num_workers=2 --log_interval_steps=1 --device={device}",
        "--max_steps=9",
        "--resume=automatic",
    ),
    "train.train_resnet_jax": (
        "--workdir={folder} --config.dataset.root={data} --config.model=_ResNet1 --config.image_size=32 "
        "--config.batch_size=8 --config.num_epochs=3 --config.warmup_epochs=1 --config.log_per_step=1 "
        "--config.dataset.num_workers=2",
        "--config.max_steps=9",
        "",
    ),
}
"""Flags of a short run, the flag that stops it early, and the flag that resumes it, by module."""


class Tree:
    """A checkout, whose programs this interpreter runs."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def run(self, *arguments: object, **variables: str) -> str:
        """Run a Python process of this tree and return what it prints; if it fails, print the end and exit with 1."""
        environment = {**os.environ, **variables, "PYTHONPATH": str(self.root)}
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{self.root}: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder by its name, and the target of every link.

    The cards and `_info.json` are left out: they are part of no digest, and older trees wrote none.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith("_build/") or name in ("README.md", "croissant.json", "_info.json"):
            continue
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def compare_builds(before: Tree, now: Tree, work: Path, images: int) -> Iterator[tuple[str, str, list[str]]]:
    """Yield a name, what was compared, and the names of files that differ."""
    originals = {name: work / "originals" / name for name in ("coco", "imagenet")}
    for name, folder in originals.items():
        now.run("-m", "dataprep", "demo-data", name, folder, "--images", images, "--odd")
    coco = ["coco-dup5", "--source", originals["coco"], *LIMITS, "--num-shards", 3]
    imagenet = ["imagenet", "--source", originals["imagenet"], *LIMITS, "--num-shards", 3]
    cases = {
        "coco-dup5": coco,
        "coco-dup5, repeated": [*coco, "--repeat", "physical"],
        "coco-dup5, resized": [*coco, "--resize", 64],
        "imagenet": imagenet,
        "imagenet, unchecked": [*imagenet, "--check", "none"],
        "imagenet-fake": ["imagenet-fake", "--images", images, "--seed", 5, "--num-shards", 3],
    }
    with picture_web() as web:
        table = web.write_table(work / "table.parquet", images)
        web.faults = {3: 404, 11: 500}
        contact = ["--contact", "mailto:tests@example.org", "--allow-network", "127.0.0.0/8"]
        limits = ["--host-per-second", 1000, "--read-seconds", 2, "--answer-seconds", 4]
        cases["laion"] = ["laion", "--source", table, *contact, *limits, "--rows-per-shard", 100]
        for name, arguments in cases.items():
            for fmt in FORMATS[: 2 if name == "laion" else 3]:
                outputs = [work / side / name / fmt for side in ("before", "now")]
                for tree, output in zip((before, now), outputs, strict=True):
                    tree.run("-m", "dataprep", "build", *arguments, "--output", output, "--format", fmt)
                first, second = map(digests, outputs)
                differ = sorted(file for file in first.keys() | second.keys() if first.get(file) != second.get(file))
                yield f"build {name}, {fmt}", f"{len(first):,} files", differ


def compare_loaders(before: Tree, now: Tree, work: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield a name, what was compared, and the numbers of batches that differ."""
    for name in ("coco-dup5", "imagenet"):
        for fmt in FORMATS:
            for settings in LOADERS:
                url = work / "before" / name / fmt
                first, second = (
                    [json.loads(line) for line in tree.run("-c", LOADER, url, json.dumps(settings)).splitlines()]
                    for tree in (before, now)
                )
                pairs = enumerate(zip_longest(first, second))
                differ = [str(number) for number, (one, other) in pairs if not one or not other or not same(one, other)]
                yield f"load {name}, {fmt}, {settings or 'defaults'}", f"{len(first):,} batches", differ


def same(one: list[Any], other: list[Any]) -> bool:
    """Return if two batches of LOADER are the same, in the fields of the state that both have."""
    states = [{**batch[-1]["sequence"], **batch[-1], "sequence": None} for batch in (one, other)]
    shared = states[0].keys() & states[1].keys() - {"dataset"}
    return one[:-1] == other[:-1] and all(states[0][name] == states[1][name] for name in shared)


def compare_training(before: Tree, now: Tree, work: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield a name, what was compared, and the steps that differ."""
    data = work / "before/imagenet/webdataset"
    for module, (flags, stop, resume) in TRAINED.items():
        for device in ("cpu",) if module.endswith("_jax") else ("cpu", "xla"):
            folders = [work / "runs" / f"{module}-{device}-{kind}" for kind in ("before", "now", "resumed")]
            words = [flags.format(data=data, folder=folder, device=device).split() for folder in folders]
            before.run("-m", module, *words[0], **ENVIRONMENT)
            now.run("-m", module, *words[1], **ENVIRONMENT)
            before.run("-m", module, *words[2], stop, *resume.split(), **ENVIRONMENT)
            now.run("-m", module, *words[2], *resume.split(), **ENVIRONMENT)
            expected, *others = map(logged, folders)
            for kind, found in zip(("anew", "resumed"), others, strict=True):
                steps = expected.keys() | found.keys()
                differ = [str(step) for step in sorted(steps) if expected.get(step) != found.get(step)]
                yield f"{module} on {device}, {kind}", f"{len(expected):,} steps", differ


def logged(folder: Path) -> dict[int, tuple[float, float]]:
    """Return loss and learning rate of every step in a run's log."""
    lines = [json.loads(line) for line in (folder / "log.txt").read_text().splitlines()]
    return {line["step"]: (line["loss"], line["lr"]) for line in lines if "loss" in line}


def main() -> int:
    """Compare, print, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="checkout to compare with; its C extension is built in place")
    parser.add_argument("--only", nargs="+", choices=("build", "load", "train"), default=("build", "load", "train"))
    parser.add_argument("--images", type=int, default=300, help="number of images or URLs of each dataset")
    options = parser.parse_args()
    before, now = Tree(options.tree), Tree(HERE)
    for tree in (before, now):
        tree.run("setup.py", "-q", "build_ext", "--inplace")
    different = 0
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        work = Path(folder)
        comparisons = {
            "build": lambda: compare_builds(before, now, work, options.images),
            "load": lambda: compare_loaders(before, now, work),
            "train": lambda: compare_training(before, now, work),
        }
        for part in dict.fromkeys(("build", *options.only)):  # the others need the datasets
            for name, compared, differ in comparisons[part]():
                verdict = "the same" if not differ else f"{len(differ)} differ: {', '.join(differ[:5])}"
                print(f"{name}: {compared}, {verdict}", flush=True)
                different += bool(differ)
    print("everything is the same" if not different else f"{different} comparisons differ")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
