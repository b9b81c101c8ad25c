"""Print which pinned versions differ between two files: `pin_changes.py BEFORE AFTER`, a line for each package."""

from __future__ import annotations

import sys
from pathlib import Path

NOTHING = "nothing"


def versions(text: str) -> dict[str, str]:
    """Return the pinned versions of each package, with markers: `1.0 (python_version < 3.12), 2.0 (...)`."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pin, _, marker = (part.strip() for part in line.partition(";"))
            name, _, version = pin.partition("==")
            found.setdefault(name, []).append(f"{version} ({marker})" if marker else version)
    return {name: ", ".join(pins) for name, pins in found.items()}


def changes(before: str, after: str) -> list[str]:
    """Return `NAME: OLD -> NEW` for every package that was added, removed or pinned otherwise, by name."""
    old, new = versions(before), versions(after)
    return [
        f"{name}: {old.get(name, NOTHING)} -> {new.get(name, NOTHING)}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def main(before: Path, after: Path) -> None:
    """Print the differences of two files of pins, below the second file's name."""
    found = changes(before.read_text(), after.read_text())
    print(f"{after}: {len(found)} changed" if found else f"{after}: as it was")
    for line in found:
        print(f"  {line}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
