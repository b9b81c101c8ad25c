"""Labels and the names of their classes."""

from __future__ import annotations

from dataprep.dataset.records import NO_LABEL, Manifest
from dataprep.messages import shortened

_DIGITS = 20
"""Number of digits by which an integer is compared and shown."""
_EXAMPLES = 3


def class_name_of(label: int, classes: tuple[str, ...]) -> str | None:
    """Return the name of a label's class: empty if the dataset has no classes, None if no class has this label."""
    if not classes:
        return "" if label == NO_LABEL else None
    return classes[label] if 0 <= label < len(classes) else None


def labelled(manifest: Manifest) -> int:
    """Return the number of samples of all splits that have a label."""
    return sum(sum(split.class_counts) for split in manifest.splits)


def unlabelled(manifest: Manifest) -> dict[str, int]:
    """Return the number of samples without a label by split; splits without such samples are left out.

    Only data that other tools wrote have such samples beside others with a label.
    """
    counts = {split.name: split.samples - sum(split.class_counts) for split in manifest.splits}
    return {name: count for name, count in counts.items() if count > 0}


def renumbering(classes: tuple[str, ...]) -> str:
    """Return a line for the user if names of classes are integers other than the labels; else an empty text."""
    if not all(name.isascii() and name.isdecimal() for name in classes):
        return ""
    other = [(name, label) for label, name in enumerate(classes) if int(name[:_DIGITS]) != label]
    if not other:
        return ""
    listed = ", ".join(f"{shortened(name, _DIGITS)} is {label}" for name, label in other[:_EXAMPLES])
    return (
        f"labels are renumbered, 0 to {len(classes) - 1:,} in the order of the names of the classes: {listed}"
        f"{', ...' if len(other) > _EXAMPLES else ''}; dataset.json lists the names in classes, by label"
    )
