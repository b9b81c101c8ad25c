"""An inspection as one self-contained HTML file: no script, nothing fetched, every text of the dataset's escaped."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from dataprep.contact_sheet import Picture
from dataprep.errors import UsageError
from dataprep.inspect import Inspection, SplitInspection
from dataprep.plots import bar_plot, class_plot
from dataprep.sizes import human_bytes

TEMPLATE = "inspect.html.j2"


def require_report_packages() -> None:
    """Raise UsageError unless what a report is made with is installed."""
    try:
        import jinja2
        import matplotlib

        del jinja2, matplotlib
    except ImportError as error:
        raise UsageError(f"--html needs {error.name}, which is not installed: pip install 'dataprep[report]'") from error


def render_html(inspection: Inspection, sheets: Mapping[str, Sequence[Picture]]) -> str:
    """The page.

    Args:
        inspection: The numbers.
        sheets: Pictures by split.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("dataprep", "data"), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    splits = [_split(split, sheets[split.name]) for split in inspection.splits]
    return environment.get_template(TEMPLATE).render(dataset=inspection, tags=_tags(inspection), splits=splits)


def _tags(inspection: Inspection) -> list[tuple[str, str]]:
    """What one should know first, each with a tone: good, warn or none."""
    checked = {
        "decode": ("every image was decoded", "good"),
        "header": ("only headers of images were checked", "warn"),
        "none": ("images were not checked", "warn"),
    }
    counts = ("partial: counts are not the published ones", "warn") if inspection.partial else ("complete", "good")
    order = ("shuffled", "") if inspection.shuffled else ("in the order of the originals", "warn")
    return [checked.get(inspection.checked, (f"checked: {inspection.checked}", "")), counts, order]


def _split(split: SplitInspection, pictures: Sequence[Picture]) -> dict[str, Any]:
    troubled = {
        kind: sum(trouble.count for trouble in split.troubles if trouble.kind == kind) for kind in ("repaired", "rejected")
    }
    passes = f"passes an epoch, {split.repeats['stored']} stored"
    return {
        "name": split.name,
        "numbers": [
            (f"{split.samples:,}", "images"),
            (human_bytes(split.num_bytes), f"in {split.shards:,} shards"),
            (human_bytes(split.bytes_per_image), "an image"),
            (f"{split.repeats['count']}", passes),
            (f"{troubled['repaired']:,}", "repaired"),
            (f"{troubled['rejected']:,}", "rejected"),
        ],
        "plots": _plots(split),
        "troubles": split.troubles,
        "pictures": [_picture(picture) for picture in pictures],
    }
