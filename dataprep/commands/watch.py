"""`dataprep watch`: how far a build or a training is, from any host."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

import click

from dataprep.arguments import StrictCommand
from dataprep.commands.options import Finite
from dataprep.errors import UsageError
from dataprep.pages.page import require_report_packages
from dataprep.pages.server import PageServer
from dataprep.watching.page import Course, watch_page
from dataprep.watching.run import RunWatch
from dataprep.watching.snapshots import ABSENT, BuildSnapshot, Snapshot

if TYPE_CHECKING:
    from rich.console import RenderableType

EPILOG = """\b
Examples:
  dataprep watch shards/imagenet
  dataprep watch gs://bucket/imagenet --interval 30
  dataprep watch runs/mae --once --json
  dataprep watch runs/mae --page

\b
Exit codes: 0 the dataset is whole, the training has ended, or shown once; 1 a file is damaged, or a disk or bucket
failed; 2 usage, or nothing there with --once; 130 ended by Ctrl-C, as --page is unless an error ends it.
"""


_ENDED_BY_CTRL_C = 128 + signal.SIGINT


class _Show(Protocol):
    def __call__(self, snapshot: Snapshot) -> object: ...


@click.command("watch", cls=StrictCommand, epilog=EPILOG)
@click.argument("url", metavar="RUN_OR_URL")
@click.option("--once", is_flag=True, help="Look once, print, and end.")
@click.option(
    "--interval",
    type=Finite(min=0.1),
    default=2.0,
    show_default=True,
    metavar="S",
    help="Time between two looks, in seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each look as one JSON object, a line each, on stdout.")
@click.option("--page", is_flag=True, help="Show a page to browsers of this machine as well, until Ctrl-C.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port of the page on 127.0.0.1.  [default: any free one]",
)
def command(url: str, once: bool, interval: float, as_json: bool, page: bool, port: int | None) -> None:
    """Show how far a build or a training is, from its own files, on any host that can read them.

    RUN_OR_URL is the output of a build, on disk or in a bucket, or the folder on disk with a training's log.txt.
    Nothing is written. Watching ends when the dataset is whole, or the training has done all of its steps; one that
    was stopped before is watched until Ctrl-C. With --page, both are shown until Ctrl-C. In a bucket a look takes a few
    requests, and at most 64 more for receipts that are new.
    """
    if page and (once or as_json):
        raise UsageError("--page shows every look until Ctrl-C; leave --once and --json out")
    if port is not None and not page:
        raise UsageError("--port is the port of --page; add --page, or leave --port out")
    try:
        _watch(url, interval, once=once, as_json=as_json, port=(port or 0) if page else None)
    except KeyboardInterrupt:  # the usual end, after which there is nothing to go on with
        click.echo(err=True)
        click.get_current_context().exit(_ENDED_BY_CTRL_C)


def _watch(url: str, interval_s: float, *, once: bool, as_json: bool, port: int | None) -> None:
    """Show a look after the other until the run is over, on a page too if there is a port for it."""
    watch = RunWatch(url)
    with ExitStack() as stack:
        served = stack.enter_context(_page(watch, interval_s, port)) if port is not None else None
        show = stack.enter_context(_output(as_json=as_json))
        while True:
            snapshot = watch.look()
            if once and snapshot.state == ABSENT:
                raise UsageError(f"{url}: no build, no training and no dataset there; check the path or URL")
            if served is not None:
                served(snapshot)
            show(snapshot)
            if once or (snapshot.is_over and served is None):
                return
            time.sleep(interval_s)


@contextmanager
def _page(watch: RunWatch, interval_s: float, port: int) -> Iterator[_Show]:
    """Serve a page from the first look on, print its address, and yield what shows a look on it."""
    require_report_packages("--page")
    course = Course()
    server: PageServer | None = None
    with ExitStack() as stack:

        def show(snapshot: Snapshot) -> None:
            nonlocal server
            if isinstance(snapshot, BuildSnapshot):
                course.saw(time.monotonic(), snapshot.finished_samples)
            page = watch_page(snapshot, course, watch.losses(), interval_s)
            if server is None:
                server = stack.enter_context(PageServer(page, port))
                click.echo(f"page: {server.url}")
            server.page = page

        yield show


@contextmanager
def _output(*, as_json: bool) -> Iterator[_Show]:
    """Yield what shows a look: JSON lines, a picture of the terminal that changes, or lines where they change."""
    from rich.console import Console

    console = Console(highlight=False)
    if as_json:
        yield lambda snapshot: click.echo(json.dumps(asdict(snapshot)))
    elif console.is_terminal:
        from rich.live import Live

        with Live(console=console, auto_refresh=False) as live:
            yield lambda snapshot: live.update(_picture(snapshot), refresh=True)
    else:
        yield _ChangedLines().show


class _ChangedLines:
    """Prints a line where it differs from the last one."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, snapshot: Snapshot) -> None:
        if snapshot.line != self._last:
            click.echo(snapshot.line)
            self._last = snapshot.line


def _picture(snapshot: Snapshot) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    parts: list[RenderableType] = [Text(snapshot.line)]
    if isinstance(snapshot, BuildSnapshot):
        parts.append(ProgressBar(total=snapshot.shards, completed=snapshot.finished_shards))
    return Group(*parts)
