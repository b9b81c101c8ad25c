"""`dataprep demo-data`: small original files in the archive layouts of the real datasets."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Literal

import click

from dataprep.arguments import MOST_SEED, WRITE, Request, command_of, option, request
from dataprep.commands.progress import BuildProgress
from dataprep.demo.make import write_demo
from dataprep.errors import UsageError
from dataprep.messages import human_bytes

DEFAULT_PORT = 8000

EPILOG = f"""\b
Examples:
  dataprep demo-data coco originals
  dataprep demo-data coco originals --annotations       captions, objects, keypoints and panoptic segments
  dataprep demo-data imagenet originals --images 2000 --odd
  dataprep demo-data laion demo --images 100 --serve     on http://127.0.0.1:{DEFAULT_PORT}
"""


@request
class DemoData(Request):
    """Write original files for DATASET, made from real photographs, into DIRECTORY.

    The photographs come with scikit-image and scikit-learn; their sizes and qualities vary as in ImageNet. The archives
    have the names and layouts of the real archives; builds need --allow-partial, because the counts differ from the
    published counts.

    laion is a table of URLs with their images. Some rows fail on purpose; expected.json has the expected status of each
    row.
    """

    dataset: Literal["coco", "imagenet", "laion"] = option("Kind of the files.", kw_only=False)
    directory: Path = option("Folder for the files.", kw_only=False)
    images: int = option(
        "Number of images, not counting val; half of coco's have no labels. For laion, number of table rows.",
        default=400,
        low=20,
        group=WRITE,
    )
    odd: bool = option("Add oddities of the real datasets: PNG, CMYK, truncated images, …", default=False, group=WRITE)
    annotations: bool = option("coco: also write annotations, in the layout of COCO 2017.", default=False, group=WRITE)
    seed: int = option("Seed of the crops.", default=0, low=0, high=MOST_SEED, group=WRITE)
    serve: bool = option(
        "laion: serve the images at the table's URLs, to this machine only, until Ctrl-C.", default=False
    )
    port: int = option(
        "laion: port for the URLs and for `serve`; 0: any free port.", default=DEFAULT_PORT, low=0, high=65_535
    )
    base_url: str | None = option(
        "laion: start of the URLs, if a different machine will serve DIRECTORY.", default=None, metavar="URL"
    )
    dry_run: bool = option("Print what would be written and where, and write nothing.", default=False)

    def __post_init__(self) -> None:
        """Check the values, and that they go together."""
        super().__post_init__()
        if self.annotations and self.dataset != "coco":
            raise UsageError(f"`annotations`: {self.dataset} has none; leave it out")
        if self.dataset == "laion" and self.odd:
            raise UsageError("laion always has its oddities; leave `odd` out")
        if self.dataset == "laion" and self.port == 0 and not self.serve:
            raise UsageError("`port` 0 needs `serve`: the table contains the server's port; add it, or name a port")
        if self.dataset != "laion" and (self.serve or self.base_url is not None):
            raise UsageError(
                f"{self.dataset} consists of archives, which need no server; leave `serve` and `base_url` out"
            )


def _write(asked: DemoData, *, as_json: bool) -> None:
    dataset, directory = asked.dataset, asked.directory
    if asked.dry_run:
        facts = {"dry_run": True, "dataset": dataset, "directory": str(directory), "images": asked.images}
        text = f"{dataset}: {asked.images:,} images would be written into {directory}"
        click.echo(json.dumps(facts) if as_json else text)
    elif dataset == "laion" and asked.serve:
        from dataprep.demo.make import demo_server

        with demo_server(directory, asked.port) as server:  # first, because the URLs contain its port
            _write_laion(asked, server.server_port, as_json)
            click.echo(f"serving {directory} at {_loopback(server.server_port)} until Ctrl-C", err=True)
            with suppress(KeyboardInterrupt):
                server.serve_forever()
    elif dataset == "laion":
        _write_laion(asked, asked.port, as_json)
    else:
        _write_archives(asked, "coco-annotated" if asked.annotations else dataset, as_json)


def _write_archives(asked: DemoData, kind: Literal["coco", "coco-annotated", "imagenet"], as_json: bool) -> None:
    directory = asked.directory
    with BuildProgress(quiet=as_json) as progress:
        made = partial(progress.reading, "photographs")
        report = write_demo(kind, directory, images=asked.images, odd=asked.odd, seed=asked.seed, progress=made)
    if as_json:
        click.echo(json.dumps(asdict(report), default=str))
        return
    for path in sorted(directory.iterdir()):
        click.echo(f"{path}  {human_bytes(path.stat().st_size)}")


def _write_laion(asked: DemoData, port: int, as_json: bool) -> None:
    from dataprep.demo.make import EXPECTED, TABLE, write_demo_laion

    directory, images, base_url = asked.directory, asked.images, asked.base_url or _loopback(port)
    with BuildProgress(quiet=as_json) as progress:
        ends = write_demo_laion(directory, base_url, images, asked.seed, partial(progress.reading, "photographs"))
    statuses = dict(Counter(end.status for end in ends))
    if as_json:
        table, expected = str(directory / TABLE), str(directory / EXPECTED)
        click.echo(json.dumps({"table": table, "expected": expected, "base_url": base_url, "statuses": statuses}))
        return
    counts = ", ".join(f"{status} {count:,}" for status, count in statuses.items())
    click.echo(f"{directory / TABLE}  {images:,} URLs at {base_url}, served by the same command with --serve")
    click.echo(f"{directory / EXPECTED}  their expected statuses: {counts}")


def _loopback(port: int) -> str:
    return f"http://127.0.0.1:{port}"


command = command_of(DemoData, _write, "demo-data", epilog=EPILOG)
