"""`dataprep inspect`: the contents of a dataset, on a terminal or as one HTML file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dataprep.arguments import StrictCommand
from dataprep.builder.finished import readable_manifest
from dataprep.commands.inspect_html import class_caption, duplicates_text, labels_text, render_html, shared_text
from dataprep.commands.options import json_option
from dataprep.dataset.index import events_file
from dataprep.dataset.paths import readable
from dataprep.errors import UsageError
from dataprep.host.piped import open_console, print_table
from dataprep.inspection.contact_sheet import open_sheet
from dataprep.inspection.histograms import Histogram
from dataprep.inspection.inspect import Inspection, SplitInspection, chosen_splits, inspect_dataset
from dataprep.inspection.rejected import Rejected, rejected
from dataprep.messages import counted, described_fields, human_bytes, printable
from dataprep.pages import require_report_packages, write_page
from dataprep.storage import open_storage

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


@click.command("inspect", cls=StrictCommand, epilog=EPILOG)
@click.argument("url", metavar="URL")
@click.option("--split", help="Show this split only.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one self-contained page as well.")
@click.option(
    "--rejected",
    "only_rejected",
    is_flag=True,
    help="List instead every row without an image, or every rejected image: split, status, reason, key, then the URL "
    "of a row, or the path of an image and what is wrong with it. A finished dataset no longer has the paths, and "
    "shows the keys as text.",
)
@json_option
def command(url: str, split: str | None, html: Path | None, only_rejected: bool, as_json: bool) -> None:
    """Show the contents of the dataset at URL: counts, classes, sizes, aspects, duplicates, repairs and rejections.

    Duplicates are images with the size and CRC32C of another one, of the same split or of another. Only manifest,
    index and events are read. With --html, at most 420 images of each split are read as well. The page shows
    duplicates, images of extreme shapes and sizes, and up to 48 that are spread over the split, with their neighbours
    in the shards; its classes can be searched and sorted.

    With --rejected, each line is a row or an image, with tabs between its values, or with --json an entry of
    `rejected`. A build of pictures need not be finished: its shards that are done are listed. Rows of a table of URLs
    have their newest status, from the parquet files beside the shards.
    """
    if only_rejected:
        if html is not None:
            raise UsageError("--rejected with --html: a page shows counts and examples; give one of the two")
        _print_rejected(url, split, as_json)
        return
    if html is not None:
        require_report_packages()
    inspection = inspect_dataset(url, split)
    if html is not None:  # first: the reader of stdout may close it early
        _write_html(inspection, split, html)
    if as_json:
        click.echo(_json(inspection))
        return
    _print(inspection)
    if html is not None:
        click.echo(f"\nwritten: {html} ({human_bytes(html.stat().st_size)})")


def _print_rejected(url: str, split: str | None, as_json: bool) -> None:
    found = rejected(url, split)
    if as_json:
        _print_rejected_json(url, found)
        return
    for each in found:
        values = (each.split, each.status.replace("_", " "), each.reason, each.key, each.origin, each.detail)
        click.echo("\t".join(printable(value) for value in values if value))


def _print_rejected_json(url: str, found: Iterator[Rejected]) -> None:
    """Print one JSON object, a line for each image, without holding all of them in memory."""
    click.echo(f'{{"url": {json.dumps(url)}, "rejected": [', nl=False)
    between = "\n"
    for each in found:
        click.echo(between + json.dumps(asdict(each)), nl=False)
        between = ",\n"
    click.echo("\n]}")


def _json(inspection: Inspection) -> str:
    """Return the inspection as JSON; beside the key of an example is the path that it was made of."""
    document = asdict(inspection)
    for split in document["splits"]:
        for trouble in split["troubles"]:
            for event in trouble["examples"]:
                event["path"] = readable(event["key"])
    return json.dumps(document)


def _write_html(inspection: Inspection, split: str | None, path: Path) -> None:
    storage = open_storage(inspection.url)
    manifest = readable_manifest(storage)
    sheets = {found.name: open_sheet(storage, manifest, found) for found in chosen_splits(manifest, split)}
    write_page(render_html(inspection, sheets), path)


def _print(inspection: Inspection) -> None:
    console = open_console()
    console.print(Text(f"{inspection.name} · {inspection.format}", style="bold"))
    facts = {
        "at": inspection.url,
        "origin": inspection.origin,
        "licence": inspection.licence,
        "checked": inspection.checked
        + (", partial: other counts than published" if inspection.partial and inspection.is_published else ""),
        "plan": f"{inspection.plan_hash[:12]}, revision {inspection.revision}",
    }
    if inspection.features:
        facts["features"] = ", ".join(f"{name} ({kind})" for name, kind in inspection.features.items())
    if inspection.fields:
        facts["fields"] = described_fields(inspection.fields, inspection.samples)
    if labels := labels_text(inspection):
        facts["labels"] = labels
    print_table(console, _facts(facts.items()))
    if inspection.shared:
        console.print()
    for shared in inspection.shared:
        console.print(Text(printable(shared_text(shared))), soft_wrap=True)
    for split in inspection.splits:
        _print_split(console, split)


def _print_split(console: Console, split: SplitInspection) -> None:
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
