"""`dataprep bench`: rates of our loader on a user's data."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dataprep.arguments import Finite, NamedDefaultOption, StrictCommand
from dataprep.commands.adopt import AdoptProgress
from dataprep.commands.options import COUNT, json_option
from dataprep.errors import UsageError
from dataprep.host.cpu import available_cores
from dataprep.messages import human_bytes, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from loaders.bench.table import BenchSection, BenchTable, Comparison

EPILOG = """\b
Examples:
  dataprep bench shards/imagenet
  dataprep bench shards/imagenet --seconds 10 --workers 4
  dataprep bench ~/data/imagenet ~/tensorflow_datasets/oxford_flowers102/2.1.1
  dataprep bench '/data/imagenet-train-{000000..000146}.tar' --json > bench.json
  dataprep bench shards/imagenet --compare bench.json

\b
Exit codes: 0 measured; 1 the loader failed; 2 usage, or no such data.
"""
_DEFAULT_SECONDS = 5.0


class BenchProgress(AdoptProgress):
    """Shows the progress that `loaders.bench.run` reports."""

    def running(self, what: str, done: int, total: int) -> None:
        """Show that one more round has begun."""
        self._show(what, done, total, "")


@click.command("bench", cls=StrictCommand, epilog=EPILOG)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--split", default="train", show_default=True, help="Split that is read.")
@click.option("--batch-size", type=COUNT, default=128, show_default=True, help="Images in a batch.")
@click.option(
    "--image-size", type=COUNT, default=224, show_default=True, help="Sides of the cropped images, in pixels."
)
@click.option(
    "--workers",
    cls=NamedDefaultOption,
    type=COUNT,
    default=available_cores,
    show_default="cores of this machine",
    help="Threads of the loader, and cores that it may use.",
)
@click.option("--seconds", type=Finite(min=0, min_open=True), help="Length of each round, in seconds.  [default: 5]")
@click.option("--batches", type=COUNT, help="Length of each round, in batches, instead of --seconds.")
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Number of rounds.")
@click.option(
    "--compare",
    "compared",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show the rates next to those of an earlier run, whose --json is in this file.",
)
@json_option
def command(
    urls: tuple[str, ...],
    split: str,
    batch_size: int,
    image_size: int,
    workers: int,
    seconds: float | None,
    batches: int | None,
    rounds: int,
    compared: Path | None,
    as_json: bool,
) -> None:
    """Measure how fast the loader delivers the images of each URL.

    A URL is a dataset of dataprep, an image folder, tars (several tars are one dataset), or a TFDS directory. Each
    round is a process of its own; the table shows medians. The scripts in benchmarks/ compare other loaders with ours.
    """
    from loaders.bench.run import BenchRequest, run_bench
    from loaders.bench.table import compare, read_table, to_document

    if seconds is not None and batches is not None:
        raise UsageError("--seconds and --batches both set the length of a round; give one of them")
    request = BenchRequest(
        urls=urls,
        split=split,
        batch_size=batch_size,
        image_size=image_size,
        workers=workers,
        seconds=0.0 if batches else seconds or _DEFAULT_SECONDS,
        batches=batches or 0,
        rounds=rounds,
    )
    before = None if compared is None else read_table(compared)
    with BenchProgress(quiet=as_json) as progress, tempfile.TemporaryDirectory(prefix="dataprep-bench-") as work:
        table = run_bench(request, Path(work), progress)
    comparison = None if before is None else compare(before, table)
    if as_json:
        beside = {} if comparison is None else {"comparison": comparison}
        click.echo(json.dumps(to_document(table) | beside))
        return
    _print(table)
    if comparison is not None:
        _print_comparison(comparison)


def _print(table: BenchTable) -> None:
    from dataprep.host.piped import open_console, print_table

    console, settings = open_console(), table.settings
    for section in table.sections:
        about = f"{section.split}, {section.samples:,} images of {human_bytes(section.bytes_per_image)}"
        _say(console, f"{section.url}: {about}, {section.layout}", style="bold")
        console.print()
        print_table(console, _rates(section))
        console.print()
        print_table(console, _stages(section))
        console.print()
    rounds, batches = settings["rounds"], settings["batches"]
    length = f"{batches:,} batches" if batches else f"{settings['seconds']:g} s"
    _say(
        console,
        f"Medians of {rounds} round{'s' if rounds > 1 else ''}, each of {length} after the first ones; batches of "
        f"{settings['batch_size']:,}, {settings['image_size']} px, random-resized crop and flip, bicubic; "
        f"{settings['workers']} workers, held to as many of {table.machine['cores']} cores. Memory: peaks of the "
        "largest process, and of all.",
        style="dim",
    )


def _print_comparison(comparison: Comparison) -> None:
    """Print the differences other than the rates, then the rates."""
    from dataprep.host.piped import open_console, print_table

    console = open_console()
    console.print()
    for difference in comparison["differences"]:
        _say(console, f"differs: {difference}", style="yellow")
    if comparison["differences"]:
        _say(console, "The ratios below hold these differences, too.")
        console.print()
    for row in comparison["rows"]:
        _say(console, f"{row['section']}: {row['verdict']}")
        rates = (row["before_images_per_s"], row["now_images_per_s"])
        ratios = (row["ratio"], row["lowest_ratio"], row["highest_ratio"], row["cpu_ratio"])
        table = _table("before images/s", "now images/s", "now / before", "from", "to", "CPU")
        table.add_row(*(f"{each:,.0f}" for each in rates), *(f"{each:.2f}" for each in ratios))
        print_table(console, table)
        console.print()
    for line in comparison["unmatched"]:
        _say(console, line, style="yellow")


def _rates(section: BenchSection) -> Table:
    table = _table(
        "images/s", "slowest", "fastest", "MB/s", "CPU ms\nan image", "first\nbatch s", "largest\nMB", "sum MB"
    )
    rates = (section.images_per_s, section.slowest_images_per_s, section.fastest_images_per_s)
    numbers = [*(f"{rate:,.0f}" for rate in rates), f"{section.mb_per_s:,.0f}", f"{section.cpu_ms_per_image:.2f}"]
    table.add_row(*numbers, f"{section.first_batch_s:.1f}", f"{section.largest_mb:,.0f}", f"{section.sum_mb:,.0f}")
    return table


def _stages(section: BenchSection) -> Table:
    """Show how the threads of the loader spent their time."""
    table = _table("stage", "busy", "waits for work", "waits for room", "busy ms an image")
    for stage in section.stages:
        shares = (stage.busy_share, stage.get_wait_share, stage.put_wait_share)
        table.add_row(stage.name, *(f"{share:.0%}" for share in shares), f"{stage.busy_ms_per_image:.2f}")
    return table


def _table(first: str, *headings: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _say(console: Console, text: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(printable(text), style=style))
