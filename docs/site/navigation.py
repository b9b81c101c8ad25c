"""The parts of the site, and which document stands in which: the side bar, from top to bottom.

Documents are named by their paths without `.md`. A document that no part lists stands in the last one, so that none is
left out.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FRONT = "README"
"""The first page, which is also index.html."""
REFERENCE = "docs/reference"
"""Folder of the pages that `reference.py` writes."""
PARTS = {
    "Start": ("docs/first-minute", "DATA"),
    "Tutorials": (
        *(
            f"docs/tutorials/{name}"
            for name in ("own-pictures", "captions", "detection", "imagenet-to-tpu", "laion", "bottleneck", "columns")
        ),
        "docs/tutorials/*",
    ),
    "Data": (
        "docs/published",
        "docs/written",
        "docs/own-dataset",
        "docs/adopt",
        "docs/reading",
        "docs/views",
        "docs/columns",
        "docs/changing",
        "docs/laion",
        "docs/fetching",
        "docs/python",
    ),
    "Loading and training": (
        "docs/loaders",
        "docs/batches",
        "docs/bottleneck",
        "docs/metrics",
        "docs/training",
        "docs/checkpoints",
        "docs/watch",
    ),
    "Clouds and clusters": ("docs/clusters", "docs/tpu", "docs/capacity", "docs/regions"),
    "Reference": (
        f"{REFERENCE}/commands/index",
        f"{REFERENCE}/api/index",
        "docs/agents",
        "benchmarks/README",
        "CHANGELOG",
    ),
    "The project": ("CONTRIBUTING", "docs/architecture", "docs/decisions/README"),
}
"""Documents by the part's heading, tutorials in the order of need; a `*` stands for all names, sorted."""
BELOW = {"docs/decisions/README": ("docs/decisions/*",)}
"""Documents that stand below another one."""


def documents() -> list[str]:
    """Return the Markdown files of the site, sorted."""
    found = [path for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md") for path in ROOT.glob(pattern)]
    return sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in found)


def navigation() -> dict[str, list[str]]:
    """Return the pages of every part, in the order of the side bar."""
    names = documents()
    below = {page: _named(patterns, names, {page}) for page, patterns in BELOW.items()}
    listed = {FRONT, *below, *(name for pages in below.values() for name in pages)}
    parts = {}
    for part, patterns in PARTS.items():
        parts[part] = _named(patterns, names, listed - set(patterns))
        listed |= set(parts[part])
    parts[next(reversed(PARTS))] += [name for name in names if name not in listed]
    return parts


def contents(page: str) -> str:
    """Return the tables of contents, in MyST's Markdown, that the site adds to a document; none for most."""
    if page == FRONT:
        return "".join(_toctree(pages, part) for part, pages in navigation().items())
    if page in BELOW:
        return _toctree(_named(BELOW[page], documents(), {page}), "")
    return ""


def _toctree(pages: list[str], caption: str) -> str:
    lines = "\n".join([*([f":caption: {caption}"] if caption else []), "", *(f"/{page}" for page in pages)])
    return f"\n\n```{{toctree}}\n:hidden:\n{lines}\n```\n"


def _named(patterns: tuple[str, ...], names: list[str], listed: set[str]) -> list[str]:
    found: list[str] = []
    for pattern in patterns:
        if pattern.startswith(REFERENCE):
            found.append(pattern)
        found += [name for name in names if fnmatch(name, pattern) and name not in listed.union(found)]
    return found
