"""The extension of the loaders built with the address and undefined-behaviour sanitizers, and fed mutated images."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FLAGS = ["-g", "-shared", "-fPIC", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build_sanitised(folder: Path, optimisation: str) -> Path:
    """The extension's file. It can only be loaded where the sanitizers are preloaded."""
    target = folder / f"_jpeg{optimisation}{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    source = REPOSITORY / "loaders/decode/_jpeg.c"
    subprocess.run(["gcc", optimisation, *FLAGS, f"-I{include}", str(source), "-ljpeg", "-o", str(target)], check=True)
    return target


def run_sanitised(folder: Path, *, images: int, seed: int, optimisation: str = "-O1") -> str:
    """Decode that many mutated images in sequences; what the fuzzer says at its end.

    Raises:
        AssertionError: With a sanitizer's report, or what differed from the same image alone.
    """
    module = build_sanitised(folder, optimisation)
    libraries = [_library(name) for name in ("libasan.so", "libubsan.so")]
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    script = REPOSITORY / "tests" / "support" / "fuzz_jpeg.py"
    command = [sys.executable, str(script), "--images", str(images), "--seed", str(seed), "--module", str(module)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()


def _library(name: str) -> str:
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
