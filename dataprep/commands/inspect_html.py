"""Renders an inspection as one self-contained HTML file: no external resources, every text escaped.

Its only script searches and sorts the tables of classes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

from dataprep.dataset.documents import JsonObject
from dataprep.dataset.hashes import also_in
from dataprep.dataset.paths import readable
from dataprep.inspection.contact_sheet import Picture, Sheet
from dataprep.inspection.histograms import Histogram
from dataprep.inspection.inspect import Inspection, Shared, SplitInspection
from dataprep.messages import counted, described_fields, human_bytes, of_images, shortened
from dataprep.pages import area_chart, histogram_bins, render_page

TEMPLATE, SCRIPT = "inspect.html.j2", "inspect.js"
FEW_CLASSES = 12
"""Number of classes up to which each has a bar with its name; more are drawn as an area."""
CLASS_CHARACTERS = 24
"""Maximum length of a class's name beside its bar; the table of classes has the whole name."""


def render_html(inspection: Inspection, sheets: Mapping[str, Sheet]) -> str:
    """Render the page.

    Args:
        inspection: Numbers of the dataset.
        sheets: Pictures and classes of each split.
    """
    return render_page(
        TEMPLATE,
        script=SCRIPT,
        dataset=inspection,
        tags=_tags(inspection),
        fields=described_fields(inspection.fields, inspection.samples),
        labels=labels_text(inspection),
        splits=[_split(split, sheets[split.name]) for split in inspection.splits],
        shared=[shared_text(shared) for shared in inspection.shared],
    )


def _tags(inspection: Inspection) -> list[tuple[str, str]]:
    """Return the most important facts, each with a tone: `good`, `warn` or empty."""
    checked = {
        "decode": ("every image decoded", "good"),
        "header": ("only headers of images checked", "warn"),
        "none": ("images not checked", "warn"),
    }
    tags = [checked.get(inspection.checked, (f"checked: {inspection.checked}", ""))]
    if inspection.is_published:
        partial = ("partial: other counts than published", "warn")
        tags.append(partial if inspection.partial else ("the published counts", "good"))
    tags.append(("shuffled", "") if inspection.shuffled else ("in the order of the originals", "warn"))
    return tags


def _split(split: SplitInspection, sheet: Sheet) -> JsonObject:
    troubled = {
        kind: sum(trouble.count for trouble in split.troubles if trouble.kind == kind)
        for kind in ("repaired", "rejected")
    }
    ends = [(f"{troubled[kind]:,}", kind) for kind in ("repaired", "rejected")]
    if split.statuses:
        ends = [(f"{count:,}", f"rows: {name.replace('_', ' ')}") for name, count in split.statuses.items() if count]
    count, stored = split.repeats["count"], split.repeats["stored"]
    passes = "pass an epoch" if count == 1 else f"passes an epoch, {stored} stored"
    return {
        "name": split.name,
        "numbers": [
            (f"{split.samples:,}", "images"),
            (human_bytes(split.num_bytes), f"in {counted(split.shards, 'shard')}"),
            (human_bytes(split.bytes_per_image), "an image"),
            (f"{count}", passes),
            *ends,
        ],
        "plots": _plots(split, sheet),
        "troubles": [
            (trouble, [(readable(event.key), event.detail) for event in trouble.examples]) for trouble in split.troubles
        ],
        "duplicates_text": _duplicates_text(split, sheet),
        "duplicates": [_pictures(group) for group in sheet.duplicates],
        "extremes": [(what, _pictures(pictures)) for what, pictures in sheet.extremes if pictures],
        "spread": [(_picture(picture), _pictures(near)) for picture, near in sheet.spread],
        "classes": _by_count(sheet),
    }


def _by_count(sheet: Sheet) -> list[tuple[str, int]]:
    """Return the classes with their counts, the largest class first."""
    return sorted(sheet.classes, key=lambda pair: (-pair[1], pair[0]))


def _duplicates_text(split: SplitInspection, sheet: Sheet) -> str:
    text = duplicates_text(split)
    shown = f" The first {len(sheet.duplicates)} groups, whose bytes were compared:" if sheet.duplicates else ""
    return f"{text[:1].upper()}{text[1:]}.{shown}"


def labels_text(inspection: Inspection) -> str:
    """Say how many images have a label; nothing where all have one, or none."""
    is_mixed = 0 < inspection.labelled < inspection.samples
    return f"{of_images(inspection.labelled, inspection.samples)} have one" if is_mixed else ""


def duplicates_text(split: SplitInspection) -> str:
    """Say how many images have the bytes of another one, and among how many that was looked for."""
    if not split.compared:
        return "not looked for: the index has no checksums of the images; `dataprep adopt --digest` records them"
    is_partial = split.compared < split.samples
    among = f"the first {split.compared:,} images of the index" if is_partial else "all images of the split"
    return f"among {among}, {split.duplicates:,} have the size and CRC32C of an earlier one"


def shared_text(shared: Shared) -> str:
    """Say which images of a split are also in another one, as `2 images of val are also in train: ...`."""
    named = [
        readable(key) if key == other else f"{readable(key)} (there {readable(other)})"
        for key, other in shared.examples
    ]
    more = ["..."] if shared.count > len(named) else []
    names = ", ".join([*named, *more])
    return f"{also_in(shared.split, shared.other, shared.count)}: {names}"


def _plots(split: SplitInspection, sheet: Sheet) -> list[JsonObject]:
    """Return title, chart and caption of each plot; `wide` marks a plot of two columns."""
    plots: list[JsonObject] = []
    sides = (("Width, pixels", split.width, split.widths), ("Height, pixels", split.height, split.heights))
    for title, spread, histogram in sides:
        if spread is not None:
            caption = f"{spread.smallest:,} to {spread.largest:,}, median {spread.median:,}"
            plots.append(_histogram(title, histogram, caption))
    if split.width is not None:
        caption = "as stored; an EXIF orientation is not applied"
        plots.append(_histogram("Aspect, width to height", split.aspects, caption))
    extremes = " to ".join(human_bytes(extreme) for extreme in split.image_bytes_extremes)
    plots.append(_histogram("Bytes of an image", split.sizes, extremes))
    if 0 < len(sheet.classes) <= FEW_CLASSES:
        names, images = zip(*_by_count(sheet), strict=True)
        labels = [shortened(name, CLASS_CHARACTERS) for name in names]
        caption = counted(len(names), "class")
        plots.append(_histogram("Images of a class", Histogram(tuple(labels), images), caption))
    elif split.classes is not None:
        counts = split.classes.counts
        highest = 1.06 * max(1, *counts, 1)  # some space above the largest class
        chart = area_chart("Images of every class", range(len(counts) + 1), [counts], highest, whole=True)
        caption = f"the largest class first; {class_caption(split)}"
        plots.append({"title": "Images of a class", "chart": chart, "caption": caption, "wide": True})
    return plots


def _histogram(title: str, found: Histogram, caption: str) -> JsonObject:
    return {"title": title, "bins": histogram_bins(found.labels, found.counts), "caption": caption}


def class_caption(split: SplitInspection) -> str:
    """Describe the number of classes, and name the smallest and the largest ones; each of a few once. A line of their
    numbering follows, if readers of an image folder give other labels."""
    classes = split.classes
    if classes is None:
        return "no classes"
    spread = classes.samples
    number = counted(classes.classes, "class")
    counts = f"{number} of {spread.smallest:,} to {spread.largest:,}, median {spread.median:,}"
    counts += f"; {split.numbering}" if split.numbering else ""
    each = dict([*classes.fewest, *reversed(classes.most)])
    if len(each) == classes.classes:
        return f"{counts}: {', '.join(f'{name} {count:,}' for name, count in each.items())}"
    ends = [
        f"{end}: " + ", ".join(f"{name} {count:,}" for name, count in names)
        for end, names in (("fewest", classes.fewest), ("most", classes.most))
    ]
    return f"{counts}; {'; '.join(ends)}"


def _pictures(pictures: Iterable[Picture]) -> list[dict[str, str]]:
    return [_picture(picture) for picture in pictures]


def _picture(picture: Picture) -> dict[str, str]:
    encoded, path = base64.b64encode(picture.jpeg).decode(), readable(picture.key)
    return {
        "key": picture.key,
        "path": path,
        "title": path if path == picture.key else f"{path}, key {picture.key}",
        "name": path.rpartition("/")[2],
        "class_name": picture.class_name,
        "caption": picture.caption,
        "src": f"data:image/jpeg;base64,{encoded}" if encoded else "",
        "problem": picture.problem,
    }
