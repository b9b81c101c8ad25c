"""`dataprep bench`: this project's loader and others on the same data, side by side."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dataprep.arguments import StrictCommand
from dataprep.commands.adopt import AdoptProgress
from dataprep.commands.options import COUNT, Finite, NamedDefaultOption, json_option
from dataprep.errors import UsageError
from dataprep.host.cpu import available_cores
from dataprep.messages import human_bytes, printable
from dataprep.pages.page import require_report_packages, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from loaders.bench.comparison import Comparison
    from loaders.bench.runs import BenchSettings
    from loaders.bench.table import BenchRow, BenchSection, BenchTable

EPILOG = """\b
Examples:
  dataprep bench shards/imagenet
  dataprep bench shards/imagenet --loader dataprep --loader torchvision --seconds 10 --html bench.html
  dataprep bench ~/data/imagenet ~/tensorflow_datasets/oxford_flowers102/2.1.1
  dataprep bench '/data/imagenet-train-{000000..000146}.tar' --json > bench.json
  dataprep bench shards/imagenet --compare bench.json
  dataprep bench gs://bucket/imagenet --convert /mnt/disk/copies

\b
Exit codes: 0 measured; 1 the loader of dataprep failed; 2 usage, or no such data; 3 no loader could be measured.
"""
_DEFAULT_SECONDS = 5.0


class BenchProgress(AdoptProgress):
    """Shows the progress that `loaders.bench.compare` reports."""

    def running(self, what: str, done: int, total: int) -> None:
        """Show that one more run has begun."""
        self._show(what, done, total, "")


@click.command("bench", cls=StrictCommand, epilog=EPILOG)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--loader", "loaders", multiple=True, metavar="NAME", help="Measure this loader only; may be repeated.")
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
    help="Processes or threads that each loader gets, and cores that they share.",
)
@click.option("--seconds", type=Finite(min=0, min_open=True), help="Length of each run, in seconds.  [default: 5]")
@click.option("--batches", type=COUNT, help="Length of each run, in batches, instead of --seconds.")
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Number of runs of each loader.")
@click.option(
    "--images",
    type=COUNT,
    default=2000,
    show_default=True,
    help="Number of images to copy for loaders that need another layout, at most.",
)
@click.option(
    "--convert",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that keeps the copies in other layouts for the next run.",
)
@click.option(
    "--peer-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Python of an environment with more loaders, such as ENV/bin/python.  [default: .bench-venv of make setup]",
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one self-contained page as well.")
@click.option(
    "--compare",
    "compared",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show the rates beside those of an earlier run, whose --json is in this file.",
)
@json_option
def command(
    urls: tuple[str, ...],
    loaders: tuple[str, ...],
    split: str,
    batch_size: int,
    image_size: int,
    workers: int,
    seconds: float | None,
    batches: int | None,
    rounds: int,
    images: int,
    convert: Path | None,
    peer_python: Path | None,
    html: Path | None,
    compared: Path | None,
    as_json: bool,
) -> None:
    """Measure how fast loaders deliver the images of each URL: dataprep, torchvision, webdataset, tf.data, mosaic and
    grain.

    A URL is a dataset of dataprep, an image folder, tars (several tars are one dataset), or a TFDS directory. Every run
    is a process of its own; the loaders take turns, and the table shows medians. A loader that needs another layout
    gets a copy of some images; of data in a bucket only with --convert.
    """
    from loaders.bench.compare import LOADERS, BenchRequest, run_bench
    from loaders.bench.comparison import compare, read_table
    from loaders.bench.runs import BenchSettings
    from loaders.bench.table import to_document

    if seconds is not None and batches is not None:
        raise UsageError("--seconds and --batches both set the length of a run; give one of them")
    settings = BenchSettings(
        batch_size=batch_size,
        image_size=image_size,
        workers=workers,
        seconds=0.0 if batches else seconds or _DEFAULT_SECONDS,
        images=(batches or 0) * batch_size,
    )
    request = BenchRequest(
        urls=urls,
        split=split,
        loaders=tuple(dict.fromkeys(loaders)) or LOADERS,
        settings=settings,
        rounds=rounds,
        copied_images=images,
        copies=convert,
        peer_python=peer_python,
    )
    if html is not None:  # checked now, not after minutes of measuring
        require_report_packages()
        if not html.absolute().parent.is_dir():
            raise UsageError(f"--html {html}: {html.parent} is no folder; create it, or choose another file")
    before = None if compared is None else read_table(compared)
    with BenchProgress(quiet=as_json) as progress, tempfile.TemporaryDirectory(prefix="dataprep-bench-") as work:
        table = run_bench(request, Path(work), progress)
    comparison = None if before is None else compare(before, table)
    if html is not None:  # first: the reader of stdout may close it early
        from loaders.report.page import bench_page

        write_page(bench_page(table, comparison), html)
    if as_json:
        beside = {} if comparison is None else {"comparison": asdict(comparison)}
        click.echo(json.dumps(to_document(table) | beside))
        return
    _print(table, settings)
    if comparison is not None:
        _print_comparison(comparison)
    if html is not None:
        click.echo(f"\nwritten: {html} ({human_bytes(html.stat().st_size)})")


def _print(table: BenchTable, settings: BenchSettings) -> None:
    from dataprep.host.piped import open_console

    console = open_console()
    for section in table.sections:
        _print_section(console, section)
    batches, rounds = table.settings["batches"], table.settings["rounds"]
    length = f"{batches:,} batches" if batches else f"{settings.seconds:g} s"
    _say(
        console,
        f"Medians of {rounds} round{'s' if rounds > 1 else ''}, each of {length} after the first ones; batches of "
        f"{settings.batch_size:,}, {settings.image_size} px, random-resized crop and flip; {settings.workers} workers, "
        f"held to as many of {table.machine['cores']} cores. Memory: peaks of the largest process, and of all.",
        style="dim",
    )


def _print_section(console: Console, section: BenchSection) -> None:
    from dataprep.host.piped import print_table

    about = f"{section.split}, {section.samples:,} images of {human_bytes(section.bytes_per_image)}, {section.layout}"
    _say(console, f"{section.url}: {about}", style="bold")
    console.print()
    print_table(console, _rates(section.rows))
    console.print()
    for row in section.rows:
        if row.stages:
            print_table(console, _stages(row))
            console.print()
    if section.copied_images:
        _say(console, f"* reads a copy of {section.copied_images:,} images on this machine, in its own layout")
    others = [f"{row.loader} resizes {row.interpolation}" for row in section.rows if row.interpolation != "bicubic"]
    for other in dict.fromkeys(others):
        _say(console, f"{other} without antialiasing, which costs less than the bicubic of the others")
    for left_out in section.left_out:
        _say(console, f"left out: {left_out.loader}: {left_out.reason}", style="yellow")
    console.print()


def _print_comparison(comparison: Comparison) -> None:
    """Print first what differed besides the rates."""
    from dataprep.host.piped import open_console, print_table

    console = open_console()
    console.print()
    for difference in comparison.differences:
        _say(console, f"differs: {difference}", style="yellow")
    if comparison.differences:
        _say(console, "The ratios below hold these differences, too.")
        console.print()
    table = _table("loader", "before\nimages/s", "now\nimages/s", "now / before", "from", "to", "CPU")
    for row in comparison.rows:
        ratios = (row.ratio, row.lowest_ratio, row.highest_ratio, row.cpu_ratio)
        rates = (row.before_images_per_s, row.now_images_per_s)
        table.add_row(row.loader, *(f"{each:,.0f}" for each in rates), *(f"{each:.2f}" for each in ratios))
    if comparison.rows:
        print_table(console, table)
        console.print()
    for row in comparison.rows:
        _say(console, f"{row.loader}: {row.verdict}")
    for line in comparison.unmatched:
        _say(console, line, style="yellow")


def _rates(rows: Sequence[BenchRow]) -> Table:
    from loaders.bench.table import OURS

    table = _table(
        "loader",
        "images/s",
        "slowest",
        "fastest",
        "MB/s",
        "CPU ms\nan image",
        "first\nbatch s",
        "largest\nMB",
        "sum MB",
    )
    for row in rows:
        rates = (row.images_per_s, row.slowest_images_per_s, row.fastest_images_per_s)
        numbers = [*(f"{rate:,.0f}" for rate in rates), f"{row.mb_per_s:,.0f}", f"{row.cpu_ms_per_image:.2f}"]
        numbers += [f"{row.first_batch_s:.1f}", f"{row.largest_mb:,.0f}", f"{row.sum_mb:,.0f}"]
        table.add_row(_name(row), *numbers, style="bold" if row.loader == OURS else None)
    return table


def _stages(row: BenchRow) -> Table:
    """Show how the threads of this project's loader spent their time."""
    table = _table(f"stages of {_name(row)}", "busy", "waits for work", "waits for room", "busy ms an image")
    for stage in row.stages:
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


def _name(row: BenchRow) -> str:
    return row.loader + (" *" if row.data == "copy" else "")


def _say(console: Console, text: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(printable(text), style=style))
