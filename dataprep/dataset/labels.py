"""Labels and the names of their classes."""

from __future__ import annotations

from dataprep.dataset.records import NO_LABEL


def class_name_of(label: int, classes: tuple[str, ...]) -> str | None:
    """Return the class of a label: empty where there are no classes, None for a label that no class has."""
    if not classes:
        return "" if label == NO_LABEL else None
    return classes[label] if 0 <= label < len(classes) else None
