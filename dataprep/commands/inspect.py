"""`dataprep inspect`: the contents of a dataset, on a terminal or as one HTML file."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dataprep.arguments import READ, WRITE, Place, command_of, function_of, option, request
from dataprep.commands.region_options import Billed
from dataprep.dataset.documents import JsonObject
from dataprep.dataset.hashes import also_in
from dataprep.dataset.index import events_file
from dataprep.dataset.paths import readable
from dataprep.errors import UsageError
from dataprep.host.piped import open_console, print_table
from dataprep.inspection.contact_sheet import Picture, Sheet, open_sheet
from dataprep.inspection.inspect import (
    Histogram,
    Shared,
    SplitSummary,
    Summary,
    chosen_splits,
    inspect_dataset,
    open_inspected,
    rejected,
)
from dataprep.messages import counted, described_fields, human_bytes, of_images, printable, shortened
from dataprep.pages import area_chart, histogram_bins, render_page, require_report_packages, write_page

EPILOG = """\b
Examples:
  dataprep inspect shards/coco-dup5
  dataprep inspect gs://bucket/imagenet --split train --html imagenet.html
  dataprep inspect shards/coco-dup5 --json | jq '.splits[].samples'
  dataprep inspect shards/laion --rejected
  dataprep inspect shards/laion --rejected --json | jq -r '.rejected[] | select(.reason == "http 403") | .origin'
"""
_BAR_CHARACTERS = 24
_EIGHTHS = " ▏▎▍▌▋▊▉"
TEMPLATE, SCRIPT = "inspect.html.j2", "inspect.js"
FEW_CLASSES = 12
"""Number of classes up to which each has a bar with its name; more are drawn as an area."""
CLASS_CHARACTERS = 24
"""Maximum length of a class's name next to its bar; the table of classes has the complete name."""


@request
class Inspect(Billed):
    """Show the contents of the dataset at URL: counts, classes, sizes, aspect ratios, duplicates, repairs, rejections.

    Duplicates are images with the same size and CRC32C, in the same or in different splits. Only the manifest, index
    and events are read. With `html`, at most 420 images of each split are read as well. The page shows duplicates,
    images with extreme shapes and sizes, and up to 48 images from across the split, with their neighbours in the
    shards; its classes can be searched and sorted.

    With `rejected`, each line is a row or an image, with tab-separated values; with --json, an entry in "rejected". If
    a build of pictures is not finished, its finished shards are listed. Rows of a table of URLs have their latest
    status, from the parquet files next to the shards.
    """

    url: Place = option(
        "Folder or gs:// prefix of the dataset, or URL@NAME for a view.", metavar="URL", kw_only=False, group=READ
    )
    split: str | None = option("Show only this split.", default=None, shown="all", group=READ)
    html: Path | None = option("Also write a self-contained HTML page.", default=None, metavar="FILE", group=WRITE)
    rejected: bool = option(
        "List rejected images instead, or table rows without an image: split, status, reason and key, then the row's "
        "URL, or the image's path and problem. A finished dataset no longer has the paths, and shows the keys as text.",
        default=False,
        only="cli",
    )

    def __post_init__(self) -> None:
        """Check the values, and that they go together."""
        super().__post_init__()
        if self.rejected and self.html is not None:
            raise UsageError("`rejected` with `html`: a page shows counts and examples; give one of the two")


def _inspected(asked: Inspect) -> Summary:
    """Summarise a dataset, and write its page if a file is named."""
    if asked.html is not None:
        require_report_packages()
    summary = inspect_dataset(str(asked.url), asked.split)
    if asked.html is not None:
        storage, manifest = open_inspected(summary.url)
        sheets = {found.name: open_sheet(storage, manifest, found) for found in chosen_splits(manifest, asked.split)}
        write_page(render_html(summary, sheets), asked.html)
    return summary


def _show(asked: Inspect, *, as_json: bool) -> None:
    if asked.rejected:
        _print_rejected(str(asked.url), asked.split, as_json)
        return
    summary = _inspected(asked)
    if as_json:
        click.echo(_json(summary))
        return
    _print(summary)
    if asked.html is not None:
        click.echo(f"\nwritten: {asked.html} ({human_bytes(asked.html.stat().st_size)})")


def _print_rejected(url: str, split: str | None, as_json: bool) -> None:
    found = rejected(url, split)
    if as_json:  # one JSON object, a line for each image, without holding all images in memory
        click.echo(f'{{"url": {json.dumps(url)}, "rejected": [', nl=False)
        between = "\n"
        for each in found:
            click.echo(between + json.dumps(asdict(each)), nl=False)
            between = ",\n"
        click.echo("\n]}")
        return
    for each in found:
        values = (each.split, each.status.replace("_", " "), each.reason, each.key, each.origin, each.detail)
        click.echo("\t".join(printable(value) for value in values if value))


def _json(summary: Summary) -> str:
    """Return the summary as JSON; next to an example's key is the path that it was made from."""
    document = asdict(summary)
    for split in document["splits"]:
        for trouble in split["troubles"]:
            for event in trouble["examples"]:
                event["path"] = readable(event["key"])
    return json.dumps(document)


def _print(summary: Summary) -> None:
    console = open_console()
    console.print(Text(f"{summary.name} · {summary.format}", style="bold"))
    facts = {
        "at": summary.url,
        "origin": summary.origin,
        "licence": summary.licence,
        "checked": summary.checked
        + (", partial: other counts than published" if summary.partial and summary.is_published else ""),
        "plan": f"{summary.plan_hash[:12]}, revision {summary.revision}",
    }
    of_samples = {
        "features": ", ".join(f"{name} ({kind})" for name, kind in summary.features.items()),
        "fields": described_fields(summary.fields, summary.samples),
        "columns": ", ".join(f"{name} ({kind})" for name, kind in summary.columns.items()),
        "labels": labels_text(summary),
    }
    print_table(console, _facts([*facts.items(), *(pair for pair in of_samples.items() if pair[1])]))
    if summary.shared:
        console.print()
    for shared in summary.shared:
        console.print(Text(printable(shared_text(shared))), soft_wrap=True)
    for split in summary.splits:
        _print_split(console, split)


def _print_split(console: Console, split: SplitSummary) -> None:
    repeats = split.repeats
    smallest, largest = split.image_bytes_extremes
    console.print()
    console.print(Text(split.name, style="bold"))
    facts = {
        "images": f"{split.samples:,} in {counted(split.shards, 'shard')}",
        "bytes": f"{human_bytes(split.num_bytes)}; {human_bytes(split.bytes_per_image)} an image, "
        f"{human_bytes(smallest)} to {human_bytes(largest)}",
        "epoch": f"{counted(repeats['count'], 'pass')}, {repeats['stored']} stored",
        "classes": class_caption(split),
        "duplicates": duplicates_text(split),
    }
    for name, spread in (("width", split.width), ("height", split.height)):
        if spread is not None:
            facts[name] = f"{spread.smallest:,} to {spread.largest:,} pixels, median {spread.median:,}"
    if split.statuses:
        rows = sum(split.statuses.values())
        ended = (f"{name.replace('_', ' ')} {count:,}" for name, count in split.statuses.items() if count)
        facts["rows"] = f"{rows:,}: {', '.join(ended)}"
    if split.unknown_sides:
        facts["unknown"] = f"width and height of {split.unknown_sides:,} images, which were not checked"
    print_table(console, _facts(facts.items()))
    titled = {"width": split.widths, "height": split.heights, "aspect": split.aspects, "bytes an image": split.sizes}
    for title, histogram in titled.items():
        if histogram.counts:
            console.print()
            print_table(console, _bars(title, histogram))
    failures = {reason: f"{count:,}" for reason, count in split.reasons.items() if reason != "success"}
    if failures:
        console.print()
        console.print(Text("  no image", style="bold"))
        print_table(console, _facts(failures.items(), indent=4))
    for trouble in split.troubles:
        console.print()
        console.print(Text(printable(f"  {trouble.kind}: {trouble.count:,} {trouble.reason}"), style="bold"))
        print_table(console, _facts([(readable(event.key), event.detail) for event in trouble.examples], indent=4))
        if more := trouble.count - len(trouble.examples):
            console.print(Text(f"    and {more:,} more: {events_file(split.name)}", style="dim"))


def _facts(facts: Iterable[tuple[str, str]], indent: int = 2) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in facts:
        label = Text(" " * indent + printable(name), style="dim", overflow="fold")
        table.add_row(label, Text(printable(value), overflow="fold"))
    return table


def _bars(title: str, histogram: Histogram) -> Table:
    """Return a table with a bar for each bin, in eighths of a character."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", min_width=18)
    table.add_column(min_width=_BAR_CHARACTERS)
    table.add_column(justify="right")
    table.add_row(Text(title, style="dim"), "", "")
    most, total = max(histogram.counts), max(1, sum(histogram.counts))
    for label, count in zip(histogram.labels, histogram.counts, strict=True):
        eighths = -(-8 * _BAR_CHARACTERS * count // max(1, most))  # non-empty bins are visible
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        table.add_row(label, Text(bar, style="blue"), f"{count:,}", f"{100 * count / total:.1f} %")
    return table


def render_html(summary: Summary, sheets: Mapping[str, Sheet]) -> str:
    """Render the page, with pictures and classes of each split."""
    return render_page(
        TEMPLATE,
        script=SCRIPT,
        dataset=summary,
        tags=_tags(summary),
        fields=described_fields(summary.fields, summary.samples),
        labels=labels_text(summary),
        splits=[_split(split, sheets[split.name]) for split in summary.splits],
        shared=[shared_text(shared) for shared in summary.shared],
    )


def _tags(summary: Summary) -> list[tuple[str, str]]:
    """Return the most important facts, each with a tone: `good`, `warn` or empty."""
    checked = {
        "decode": ("every image decoded", "good"),
        "header": ("only headers of images checked", "warn"),
        "none": ("images not checked", "warn"),
    }
    tags = [checked.get(summary.checked, (f"checked: {summary.checked}", ""))]
    if summary.is_published:
        partial = ("partial: other counts than published", "warn")
        tags.append(partial if summary.partial else ("the published counts", "good"))
    tags.append(("shuffled", "") if summary.shuffled else ("in the order of the originals", "warn"))
    return tags


def _split(split: SplitSummary, sheet: Sheet) -> JsonObject:
    ends = [
        (f"{sum(trouble.count for trouble in split.troubles if trouble.kind == kind):,}", kind)
        for kind in ("repaired", "rejected")
    ]
    if split.statuses:
        ends = [(f"{count:,}", f"rows: {name.replace('_', ' ')}") for name, count in split.statuses.items() if count]
    count, stored = split.repeats["count"], split.repeats["stored"]
    passes = "pass per epoch" if count == 1 else f"passes per epoch, {stored} stored"
    duplicates = duplicates_text(split)
    shown = f" The first {len(sheet.duplicates)} groups, whose bytes were compared:" if sheet.duplicates else ""
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
        "duplicates_text": f"{duplicates[:1].upper()}{duplicates[1:]}.{shown}",
        "duplicates": [[*map(_picture, group)] for group in sheet.duplicates],
        "extremes": [(what, [*map(_picture, pictures)]) for what, pictures in sheet.extremes if pictures],
        "spread": [(_picture(picture), [*map(_picture, near)]) for picture, near in sheet.spread],
        "classes": _by_count(sheet),
    }


def _by_count(sheet: Sheet) -> list[tuple[str, int]]:
    """Return the classes with their counts, the largest class first."""
    return sorted(sheet.classes, key=lambda pair: (-pair[1], pair[0]))


def labels_text(summary: Summary) -> str:
    """Say how many images have a label; nothing if all have one, or none."""
    is_mixed = 0 < summary.labelled < summary.samples
    return f"{of_images(summary.labelled, summary.samples)} have one" if is_mixed else ""


def duplicates_text(split: SplitSummary) -> str:
    """Say how many images repeat an earlier one, by size and CRC32C, and how many images were compared."""
    if not split.compared:
        return "not looked for: the index has no checksums of the images; `dataprep adopt --digest` records them"
    is_partial = split.compared < split.samples
    among = f"the first {split.compared:,} images" if is_partial else f"all {split.compared:,} images"
    if not split.duplicates:
        return f"none among {among}"
    return f"{split.duplicates:,} among {among} (same size and CRC32C as an earlier image)"


def shared_text(shared: Shared) -> str:
    """Say which images of a split are also in another one, as `2 images of val are also in train: ...`."""
    named = [
        readable(key) if key == other else f"{readable(key)} (there {readable(other)})"
        for key, other in shared.examples
    ]
    named += ["..."] if shared.count > len(named) else []
    return f"{also_in(shared.split, shared.other, shared.count)}: {', '.join(named)}"


def _plots(split: SplitSummary, sheet: Sheet) -> list[JsonObject]:
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


def class_caption(split: SplitSummary) -> str:
    """Describe the number of classes, and name the smallest and the largest ones (if few, all). A line of their
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


def _picture(picture: Picture) -> dict[str, str]:
    encoded, path = base64.b64encode(picture.jpeg).decode(), readable(picture.key)
    return {
        "key": picture.key,
        "path": path,
        "title": path if path == picture.key else f"{path}, key {picture.key}",
        "name": path.rpartition("/")[2],
        "class_name": picture.class_name,
        "caption": picture.caption,
        "columns": picture.columns,
        "src": f"data:image/jpeg;base64,{encoded}" if encoded else "",
        "problem": picture.problem,
    }


inspect = function_of(Inspect, _inspected, "inspect")
command = command_of(Inspect, _show, "inspect", epilog=EPILOG)
