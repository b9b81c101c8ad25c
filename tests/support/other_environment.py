"""A real second environment: everything of this one, but another version of Pillow."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from tests.support.dockerfile import install, new_environment
from tests.support.markdown import ROOT

OTHER_PILLOW = "11.3.0"


def other_environment(folder: Path) -> Path:
    """Make the environment, and return its Python; Pillow comes from the package index."""
    python = new_environment(folder / "environment")
    (packages,) = (folder / "environment/lib").glob("python3.*/site-packages")
    # Its own packages come first; a path file is read after them.
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    install(python, "--no-deps", f"pillow=={OTHER_PILLOW}")
    return python
