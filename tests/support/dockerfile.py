"""The image of the Dockerfile without Docker: what it installs, and the same environment as a virtual one."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.markdown import ROOT

UV = str(Path(sys.executable).parent / "uv")


@dataclass(frozen=True, slots=True)
class Image:
    """What a Dockerfile says."""

    base: str
    arguments: dict[str, str]
    """Values of ARG."""
    copied: dict[str, str]
    """Target below the working directory of each path that is copied."""
    pip: tuple[str, ...]
    """Words of the one `pip install` after it."""
    environment: dict[str, str]

    @property
    def extras(self) -> set[str]:
        """Extras of this package that are installed."""
        (found,) = re.findall(r"^\.\[([a-z,]+)\]$", self.pip[-1])
        return set(found.split(","))


def read_image(path: Path = ROOT / "Dockerfile") -> Image:
    """Read a Dockerfile of ARG, FROM, WORKDIR, COPY, one RUN of pip, and ENV; other instructions are an error."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    arguments: dict[str, str] = {}
    copied: dict[str, str] = {}
    environment: dict[str, str] = {}
    base, pip = "", ()
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        words = shlex.split(rest)
        if word == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif word == "FROM":
            base = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], rest)
        elif word == "COPY":
            *sources, target = words
            copied |= {source: target + source if target.endswith("/") else target for source in sources}
        elif word == "RUN":
            assert words[:2] == ["pip", "install"] and not pip, line
            pip = tuple(words[2:])
        elif word == "ENV":
            environment |= dict(each.split("=", 1) for each in words)
        else:
            assert word == "WORKDIR", line
    return Image(base, arguments, copied, pip, environment)


def build_environment(image: Image, folder: Path) -> Path:
    """Make the environment of an image below a folder, with its files, pins and options of pip; return its Python."""
    work, environment = folder / "image", folder / "environment"
    for source, target in image.copied.items():
        place = work / target
        place.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, place)
    python = new_environment(environment)
    words = [word for word in image.pip if word != "--no-cache-dir"]
    beam = f"apache-beam[gcp]=={image.arguments['BEAM_VERSION']}"  # what the base image has
    install(python, *words, beam, folder=work)
    return python


def new_environment(folder: Path) -> Path:
    """Make an empty environment of this Python, and return its interpreter."""
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    return folder / "bin" / "python"


def install(python: Path, *words: str, folder: Path = ROOT) -> None:
    """Run `pip install` with these words in an environment."""
    subprocess.run([UV, "pip", "install", "--quiet", "--python", str(python), *words], cwd=folder, check=True)
