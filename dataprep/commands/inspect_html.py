"""An inspection as one self-contained HTML file: no script, nothing fetched, every text of the dataset's escaped."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from dataprep.commands.options import human_bytes
from dataprep.contact_sheet import Picture
from dataprep.inspect import Inspection, SplitInspection
from dataprep.page import render_page
from dataprep.plots import bar_plot, class_plot

TEMPLATE = "inspect.html.j2"


def render_html(inspection: Inspection, sheets: Mapping[str, Sequence[Picture]]) -> str:
    """The page.

    Args:
        inspection: The numbers.
        sheets: Pictures by split.
    """
    splits = [_split(split, sheets[split.name]) for split in inspection.splits]
    return render_page(TEMPLATE, dataset=inspection, tags=_tags(inspection), splits=splits)


def _tags(inspection: Inspection) -> list[tuple[str, str]]:
    """What one should know first, each with a tone: good, warn or none."""
    checked = {
        "decode": ("every image decoded", "good"),
        "header": ("only headers of images checked", "warn"),
        "none": ("images not checked", "warn"),
    }
    tags = [checked.get(inspection.checked, (f"checked: {inspection.checked}", ""))]
    if not any(split.statuses for split in inspection.splits):  # of a table nobody published counts
        partial = ("partial: other counts than published", "warn")
        tags.append(partial if inspection.partial else ("the published counts", "good"))
    tags.append(("shuffled", "") if inspection.shuffled else ("in the order of the originals", "warn"))
    return tags


def _split(split: SplitInspection, pictures: Sequence[Picture]) -> dict[str, Any]:
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
            (human_bytes(split.num_bytes), f"in {split.shards:,} shard{'s' if split.shards > 1 else ''}"),
            (human_bytes(split.bytes_per_image), "an image"),
            (f"{count}", passes),
            *ends,
        ],
        "plots": _plots(split),
        "troubles": split.troubles,
        "pictures": [_picture(picture) for picture in pictures],
    }


def _plots(split: SplitInspection) -> list[dict[str, Any]]:
    """Title, drawing and caption of each; drawings hold numbers and our own labels alone, so they are not escaped."""
    from markupsafe import Markup

    plots: list[dict[str, Any]] = []
    sides = (("Width, pixels", split.width, split.widths), ("Height, pixels", split.height, split.heights))
    for title, spread, histogram in sides:
        if spread is not None:
            caption = f"{spread.smallest:,} to {spread.largest:,}, median {spread.median:,}"
            plots.append({"title": title, "svg": Markup(bar_plot(title, histogram)), "caption": caption})
    if split.width is not None:
        title, caption = "Aspect, width to height", "as stored; an EXIF orientation is not applied"
        plots.append({"title": title, "svg": Markup(bar_plot(title, split.aspects)), "caption": caption})
    title, caption = "Bytes of an image", " to ".join(human_bytes(extreme) for extreme in split.image_bytes_extremes)
    plots.append({"title": title, "svg": Markup(bar_plot(title, split.sizes)), "caption": caption})
    if split.classes is not None:
        title, caption = "Images of a class", class_caption(split)
        svg = Markup(class_plot(title, split.classes.counts))
        plots.append({"title": title, "svg": svg, "caption": caption, "wide": True})
    return plots


def class_caption(split: SplitInspection) -> str:
    """How many classes there are, and which are the smallest and the largest."""
    classes = split.classes
    if classes is None:
        return "no classes"
    spread = classes.samples
    counts = f"{classes.classes:,} classes of {spread.smallest:,} to {spread.largest:,}, median {spread.median:,}"
    ends = [
        f"{end}: " + ", ".join(f"{name} {count:,}" for name, count in names)
        for end, names in (("fewest", classes.fewest), ("most", classes.most))
    ]
    return f"{counts}; {'; '.join(ends)}"


def _picture(picture: Picture) -> dict[str, str]:
    encoded = base64.b64encode(picture.jpeg).decode()
    return {
        "key": picture.key,
        "short_key": picture.key.rpartition("/")[2],
        "class_name": picture.class_name,
        "src": f"data:image/jpeg;base64,{encoded}" if encoded else "",
        "problem": picture.problem,
    }
