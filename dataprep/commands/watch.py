"""`dataprep watch`: how far a build or a training is, from any host."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dataprep.arguments import READ, Place, Request, command_of, option, request
from dataprep.errors import UsageError
from dataprep.watching import ABSENT, BuildSnapshot, RunWatch, Snapshot

if TYPE_CHECKING:
    from rich.console import RenderableType

EPILOG = """\b
Examples:
  dataprep watch shards/imagenet
  dataprep watch gs://bucket/imagenet --interval 30
  dataprep watch runs/mae --once --json

\b
Exit codes: 0 the dataset is complete, the training run has ended, or --once; 1 a file is damaged, or a disk or bucket
failed; 2 wrong usage, or nothing there with --once; 130 ended by Ctrl-C.
"""
_ENDED_BY_CTRL_C = 128 + signal.SIGINT


@request
class Watch(Request):
    """Show the progress of a build or a training run from its own files, on any host that can read them.

    RUN_OR_URL is the output of a build, or the folder with a training run's log.txt, on disk or in a bucket. Nothing is
    written. Watching ends when the dataset is finished, or the training run has done all of its steps; a run that
    stopped earlier is watched until Ctrl-C. In a bucket, a refresh takes a few requests, and at most 64 more for new
    receipts. With --json, each refresh prints one JSON object on a line.
    """

    url: Place = option(
        "Output of a build, or folder of a training run.", metavar="RUN_OR_URL", kw_only=False, group=READ
    )
    once: bool = option("Print once, and exit.", default=False)
    interval: float = option("Time between refreshes, in seconds.", default=2.0, low=0.1, metavar="S")


def _run(asked: Watch, *, as_json: bool) -> int | None:
    try:
        watch = RunWatch(str(asked.url))
        with _output(as_json=as_json) as show:
            while True:
                snapshot = watch.look()
                if asked.once and snapshot.state == ABSENT:
                    raise UsageError(f"{asked.url}: no build, training run or dataset there; check the path or URL")
                show(snapshot)
                if asked.once or snapshot.is_over:
                    return None
                time.sleep(asked.interval)
    except KeyboardInterrupt:  # the usual end, after which there is nothing to continue
        click.echo(err=True)
        return _ENDED_BY_CTRL_C


command = command_of(Watch, _run, "watch", epilog=EPILOG)


@contextmanager
def _output(*, as_json: bool) -> Iterator[Callable[[Snapshot], object]]:
    """Yield the display of looks: JSON lines, a picture on the terminal that changes, or lines if they change."""
    from dataprep.host.piped import VisibleConsole

    console = VisibleConsole(sys.stdout)
    if as_json:
        yield lambda snapshot: click.echo(json.dumps(asdict(snapshot)))
    elif console.is_terminal:
        from rich.live import Live

        with Live(console=console, auto_refresh=False) as live:
            yield lambda snapshot: live.update(_picture(snapshot), refresh=True)
    else:
        last = ""

        def show(snapshot: Snapshot) -> None:
            nonlocal last
            if snapshot.line != last:
                click.echo(snapshot.line)
                last = snapshot.line

        yield show


def _picture(snapshot: Snapshot) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    parts: list[RenderableType] = [Text(snapshot.line)]
    if isinstance(snapshot, BuildSnapshot):
        parts.append(ProgressBar(total=snapshot.shards, completed=snapshot.finished_shards))
    return Group(*parts)
