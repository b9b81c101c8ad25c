"""`dataprep bench`: rates of our loader on a user's data."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dataprep.arguments import command_of
from dataprep.commands.adopt import AdoptProgress
from dataprep.messages import human_bytes, printable
from loaders.bench.run import BenchRequest, BenchSection, BenchTable, run_bench, to_document
from loaders.metrics.earlier import compare, read_earlier

if TYPE_CHECKING:
    from rich.table import Table

EPILOG = """\b
Examples:
  dataprep bench shards/imagenet
  dataprep bench shards/imagenet --seconds 10 --workers 4
  dataprep bench ~/data/imagenet ~/tensorflow_datasets/oxford_flowers102/2.1.1
  dataprep bench '/data/imagenet-train-{000000..000146}.tar' --json > bench.json
  dataprep bench shards/imagenet --compare bench.json

\b
Exit codes: 0 measured; 1 the loader failed; 2 wrong usage, or no such data.
"""


class BenchProgress(AdoptProgress):
    """Shows the progress that `loaders.bench.run` reports."""

    def running(self, what: str, done: int, total: int) -> None:
        """Show that one more round has begun."""
        self._show(what, done, total, "")


def _bench(asked: BenchRequest, *, as_json: bool) -> None:
    before = read_earlier(asked.compare, "sections", "dataprep bench --json")
    with BenchProgress(quiet=as_json) as progress, tempfile.TemporaryDirectory(prefix="dataprep-bench-") as work:
        table = run_bench(asked, Path(work), progress)
    document = to_document(table)
    comparison = compare(before, document)
    if as_json:
        found = {} if comparison is None else {"comparison": asdict(comparison)}
        click.echo(json.dumps(document | found))
        return
    _print(table)
    if comparison is not None:
        from dataprep.host.piped import open_console, print_lines

        print_lines(open_console(), "", comparison.text())


command = command_of(BenchRequest, _bench, "bench", epilog=EPILOG)


def _print(table: BenchTable) -> None:
    from rich.text import Text

    from dataprep.host.piped import open_console, print_table

    console, settings = open_console(), table.settings
    for section in table.sections:
        about = f"{section.split}, {section.samples:,} images of {human_bytes(section.bytes_per_image)}"
        console.print(Text(printable(f"{section.url}: {about}, {section.layout}"), style="bold"))
        for found in _tables(section):
            console.print()
            print_table(console, found)
        console.print()
    rounds, batches = settings["rounds"], settings["batches"]
    length = f"{batches:,} batches" if batches else f"{settings['seconds']:g} s"
    text = (
        f"Medians of {rounds} round{'s' if rounds != 1 else ''}, each of {length} after the first batches; batch size "
        f"{settings['batch_size']:,}, {settings['image_size']} px, random-resized crop and flip, bicubic; "
        f"{settings['workers']} workers, limited to as many of {table.machine['cores']} cores. Memory: peaks of the "
        "largest process, and of all."
    )
    console.print(Text(printable(text), style="dim"))


def _tables(section: BenchSection) -> tuple[Table, Table]:
    """Return the rates of the loader, and how its threads spent their time."""
    rates = _table(
        "images/s", "slowest", "fastest", "MB/s", "CPU ms\nan image", "first\nbatch s", "largest\nMB", "sum MB"
    )
    found = (section.images_per_s, section.slowest_images_per_s, section.fastest_images_per_s, section.mb_per_s)
    times = (f"{section.cpu_ms_per_image:.2f}", f"{section.first_batch_s:.1f}")
    rates.add_row(*(f"{rate:,.0f}" for rate in found), *times, f"{section.largest_mb:,.0f}", f"{section.sum_mb:,.0f}")
    stages = _table("stage", "busy", "waits for work", "waits for room", "busy ms an image")
    for stage in section.stages:
        shares = (stage.busy_share, stage.get_wait_share, stage.put_wait_share)
        stages.add_row(stage.name, *(f"{share:.0%}" for share in shares), f"{stage.busy_ms_per_image:.2f}")
    return rates, stages


def _table(first: str, *headings: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
