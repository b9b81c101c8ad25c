"""open_clip's own training script under the guard: it reads shards from a bucket by URL, through webdataset and curl.

The script is that of the package, unmodified, in a folder of its own (`make setup`).
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from tests.support.gcs_emulator import GCSEmulator
from tests.support.guarded import HERE, put_object

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / ".bench-venv/open_clip"
BUCKET = "guard-near"
SHARDS, IMAGES = 2, 8
"""Number of shards, and of images in each."""


def fill(emulator: GCSEmulator) -> int:
    """Store shards of images with captions; return their bytes."""
    rng, total = np.random.default_rng(0), 0
    for shard in range(SHARDS):
        data = _shard(rng)
        put_object(emulator, BUCKET, f"clip/{shard:05d}.tar", data)
        total += len(data)
    return total


def train(folder: Path, *options: str) -> tuple[int, dict, str]:
    """Train for an epoch under the guard; return its exit code, its report, and what was said."""
    urls = f"pipe:curl -sSf https://storage.googleapis.com/{BUCKET}/clip/{{00000..{SHARDS - 1:05d}}}.tar"
    flags = {
        "train-data": urls,
        "dataset-type": "webdataset",
        "train-num-samples": SHARDS * IMAGES,
        "batch-size": IMAGES,
        "epochs": 1,
        "workers": 1,
        "warmup": 1,
        "model": "ViT-S-32-alt",
        "device": "cpu",
        "precision": "fp32",
        "save-frequency": 0,
        "log-every-n-steps": 1,
        "logs": folder,
    }
    script = [sys.executable, "-m", "open_clip_train.main"]
    script += [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "dataprep", "guard", "--zone", HERE, "--json", *options, "--", *script]
    variables = {**os.environ, "PYTHONPATH": f"{PACKAGES}{os.pathsep}{ROOT}"}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, timeout=600)
    assert run.stdout, run.stderr
    return run.returncode, json.loads(run.stdout), run.stderr


def left_behind() -> list[int]:
    """Return the processes of the script that still run."""
    words = ((each.pid, each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"]))
    return [pid for pid, command in words if "open_clip_train.main" in command and "guard" not in command]


def _shard(rng: np.random.Generator) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number in range(IMAGES):
            picture = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (224, 224, 3), np.uint8)).save(picture, "JPEG")
            for suffix, data in (("jpg", picture.getvalue()), ("txt", b"noise")):
                member = tarfile.TarInfo(f"{number:03d}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return file.getvalue()
