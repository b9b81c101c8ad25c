"""Labels and the names of their classes."""

from __future__ import annotations

from dataprep.dataset.records import NO_LABEL


def class_name_of(label: int, classes: tuple[str, ...]) -> str | None:
    """Return the name of a label's class: empty if the dataset has no classes, None if no class has this label."""
    if not classes:
        return "" if label == NO_LABEL else None
    return classes[label] if 0 <= label < len(classes) else None
