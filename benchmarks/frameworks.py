"""Masked autoencoders in JAX beside torch_xla on this machine's processors, and how long ViT-L takes to compile.

    python benchmarks/frameworks.py --json benchmarks/results/frameworks.json

Both train the same network on the same shards, batches and masks, in processes of their own that take turns, on one XLA
device with all cores. A rate is the median of a run's log lines after the first two, in which the update is compiled.
Compiling is measured in a new process each time, without a cache, for one update of ViT-L's masked autoencoder.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

FRAMEWORKS = {"torch_xla": ["--device", "xla"], "jax": ["--framework", "jax", "--device", "cpu"]}
"""Flags of each framework."""
RUN = {
    "model": "mae_vit_tiny_patch16",
    "effective_batch_size": 32,
    "epochs": 100,
    "warmup_epochs": 1,
    "max_steps": 24,
    "log_interval_steps": 4,
}
"""Flags of a run whose rate is measured."""
WARM_UP_LINES = 2
LARGE = "mae_vit_large_patch16"
COMPILED_IMAGES = 2
KINDS = {"scan": True, "no scan": False}
"""Whether the blocks are compiled once, as a loop, by the names of the rows."""


def rate(data: str, folder: Path, framework: str, steps: int) -> float:
    """Train in a process of its own; return images/s."""
    cores = str(os.cpu_count())
    variables = {**os.environ, "OMP_NUM_THREADS": cores, "NPROC": cores, "CPU_NUM_DEVICES": "1"}
    variables |= {"PJRT_DEVICE": "CPU"} if framework == "torch_xla" else {}
    given = {**RUN, "max_steps": steps, "data_path": data, "output_dir": folder}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "train.pretrain_mae", *FRAMEWORKS[framework], *words]
    run = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{framework}: {run.stderr[-2000:]}")
    lines = [json.loads(line) for line in (folder / "log.txt").read_text().splitlines()]
    return statistics.median(line["images_per_s"] for line in lines[WARM_UP_LINES:] if "images_per_s" in line)


def rates(data: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure both frameworks in turn; each is first in every other round."""
    found: dict[str, list[float]] = {name: [] for name in FRAMEWORKS}
    for number in range(options.rounds):
        for name in list(FRAMEWORKS)[:: 1 if number % 2 else -1]:
            with tempfile.TemporaryDirectory(dir=options.work) as folder:
                found[name].append(rate(data, Path(folder) / "run", name, options.steps))
            print(f"round {number + 1}, {name}: {found[name][-1]:.1f} images/s", file=sys.stderr, flush=True)
    ratios = [ours / theirs for ours, theirs in zip(found["jax"], found["torch_xla"], strict=True)]
    return {
        "images_per_s": found,
        **{name: statistics.median(each) for name, each in found.items()},
        "ratio": statistics.median(ratios),
    }


def compiling(kind: str, model: str = LARGE) -> dict[str, float]:
    """Trace and compile one update in this process; no weight is allocated.

    Args:
        kind: One of KINDS.
        model: Name of the masked autoencoder.
    """
    import jax
    import numpy as np

    from train.batches.masks import MaskConfig
    from train.loops.jax import open_mesh
    from train.loops.jax_transformer_steps import Inputs, MAETask, Settings, TransformerSteps
    from train.models.jax_transformers import Computation, MaskedAutoencoder
    from train.models.sizes import mae_config

    config = mae_config(model, image_size=224)
    masks = MaskConfig(grid=config.grid)
    task = MAETask(model=MaskedAutoencoder(config, Computation(scan=KINDS[kind])), masks=masks, seed=0)
    steps = TransformerSteps(task, open_mesh(1), Settings(weight_decay=0.05, betas=(0.9, 0.95)))
    shapes = (
        ((COMPILED_IMAGES, 224, 224, 3), "uint8"),
        ((COMPILED_IMAGES, masks.num_visible), "int32"),
        ((COMPILED_IMAGES, masks.num_patches), "int32"),
    )
    inputs = Inputs(tuple(jax.ShapeDtypeStruct(*each) for each in shapes), np.uint32(0))
    values = jax.eval_shape(steps.initial)
    started_s = time.perf_counter()
    lowered = steps.update.lower(values, inputs, 0.1)
    traced_s = time.perf_counter() - started_s
    lowered.compile()
    return {"traced_s": traced_s, "compiled_s": time.perf_counter() - started_s - traced_s}


def compile_times(model: str) -> dict[str, dict[str, float]]:
    """Measure `compiling` with and without scan, each in a process of its own."""
    found = {}
    variables = {**os.environ, "JAX_PLATFORMS": "cpu"}
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)
    for kind in KINDS:
        command = [sys.executable, str(Path(__file__).resolve()), "--compile", kind, "--model", model]
        run = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
        found[kind] = json.loads(run.stdout.splitlines()[-1])
        print(f"{model}, {kind}: {found[kind]}", file=sys.stderr, flush=True)
    return found


def demo_shards(work: Path, images: int) -> str:
    """Build shards of demo photographs; return their URL."""
    from dataprep.demo.make import write_demo

    write_demo("imagenet", work / "originals", images=images, odd=False)
    command = [sys.executable, "-m", "dataprep", "build", "imagenet", "--source", str(work / "originals")]
    command += ["--output", str(work / "shards"), "--format", "webdataset", "--split", "train", "--allow-partial"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return str(work / "shards")


def main() -> None:
    """Measure, and print or write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=RUN["max_steps"], help="updates of each run")
    parser.add_argument("--images", type=int, default=300, help="demo images that are built")
    parser.add_argument("--model", default=LARGE, help="masked autoencoder whose update is compiled")
    parser.add_argument("--work", default=None, help="folder for shards and runs, which are removed again")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--compile", choices=list(KINDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        print(json.dumps(compiling(options.compile, options.model)))
        return
    from benchmarks.originals import machine_facts

    document: dict[str, Any] = machine_facts() | {"model": RUN["model"], "steps": options.steps}
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        document |= {"rates": rates(demo_shards(Path(folder), options.images), options)}
    document |= {"compiled_model": options.model, "compiling": compile_times(options.model)}
    text = json.dumps(document, indent=1) + "\n"
    if options.json:
        options.json.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
