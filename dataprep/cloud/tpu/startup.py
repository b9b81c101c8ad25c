"""Makes the script that every worker runs at boot, which installs packages and mounts shares, with retries. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from dataprep.errors import UsageError

PACKAGES = ("gcc", "libjpeg-dev", "python3-venv")
"""Debian packages of every worker: the compiler of the loaders' decoder, and Python's virtual environments."""
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_SHARE = re.compile(r"([A-Za-z0-9.-]+:/[^\s=:]*)=(/[^\s=:]+)")


@dataclass(frozen=True, slots=True)
class Share:
    """An NFS share and its mount point."""

    source: str
    """Server and share, such as `10.0.0.2:/vol1`."""
    target: str
    """Folder, such as `/mnt/data`."""


def parse_share(text: str) -> Share:
    """Parse `SERVER:/SHARE=/FOLDER`.

    Raises:
        UsageError: The text has another form.
    """
    match = _SHARE.fullmatch(text)
    if match is None or ".." in match[2].split("/"):
        raise UsageError(f"--nfs {text!r}: expected SERVER:/SHARE=/FOLDER, such as 10.0.0.2:/vol1=/mnt/data")
    return Share(match[1], match[2].rstrip("/"))


def startup_script(shares: Sequence[Share] = (), packages: Sequence[str] = ()) -> str:
    """Return the bash script; every value in it is quoted.

    Raises:
        UsageError: A package's name is not valid.
    """
    for name in packages:
        if not _PACKAGE.fullmatch(name):
            raise UsageError(f"--package {name!r}: not a name of a Debian package")
    names = dict.fromkeys((*PACKAGES, *(["nfs-common"] if shares else []), *packages))
    install = f'try "${{apt[@]}}" install {shlex.join(names)}'
    mounts = "\n".join(f"try share {shlex.join((share.source, share.target))}" for share in shares)
    template = resources.files("dataprep").joinpath("data", "tpu_startup.sh").read_text(encoding="utf-8")
    return template.replace("@packages@", install).replace("@shares@\n", f"{mounts}\n" if mounts else "")
