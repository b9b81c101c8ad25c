"""The machine and the installed libraries, which bytes, verdicts and measurements depend on."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import TypedDict

from dataprep import __version__
from dataprep.host.cpu import available_cores

CODECS = ("pillow", "pyarrow", "simplejpeg")
"""Libraries whose output or verdict influences the bytes of a dataset; constraints.txt pins their versions."""
WHEEL_LIBJPEG = "3.1.0"
"""Version of libjpeg-turbo in the wheels: the newest whose source a registry has. Later ones have fixes: look for them
before a release, as no audit of packages sees this library."""


def codec_versions(*more: str) -> dict[str, str]:
    """Return the installed versions of CODECS and of `more` packages, `unknown` without metadata."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for package in (*CODECS, *more):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # a bundled application without package metadata
            versions[package] = "unknown"
    return versions


class MachineDocument(TypedDict):
    """The machine and the software that something was measured on."""

    cores: int
    busy_cores_before: float
    """Cores that other programs kept busy before the measurement."""
    processor: str
    platform: str
    python: str
    codecs: dict[str, str]
    dataprep: str
    measured: str
    """Time of the measurement, in UTC."""


def processor_name() -> str:
    """Return the name of this machine's processor, or its architecture if the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def machine_document(busy_cores: float) -> MachineDocument:
    """Return the part of a report about the machine and the software of the measurement.

    Args:
        busy_cores: Number of cores that other programs kept busy before the measurement.
    """
    return {
        "cores": available_cores(),
        "busy_cores_before": round(busy_cores, 2),
        "processor": processor_name(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "codecs": codec_versions(),
        "dataprep": __version__,
        "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
