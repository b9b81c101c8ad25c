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

from dataprep.arguments import MOST_COUNT, MOST_SEED, StrictCommand
from dataprep.commands.options import json_option
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


@click.command("demo-data", cls=StrictCommand, epilog=EPILOG)
@click.argument("dataset", type=click.Choice(["coco", "imagenet", "laion"]))
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--images",
    type=click.IntRange(20, MOST_COUNT),
    default=400,
    show_default=True,
    help="Number of images in train, besides those in val; for laion, number of rows of the table.",
)
@click.option(
    "--odd", is_flag=True, help="Add what the real datasets hold besides plain JPEGs: PNG, CMYK, truncated images, …"
)
@click.option(
    "--annotations", "annotated", is_flag=True, help="coco: write annotations in the layout of COCO 2017, too."
)
@click.option("--seed", type=click.IntRange(0, MOST_SEED), default=0, show_default=True, help="Seed of the crops.")
@click.option(
    "--serve", is_flag=True, help="laion: serve the images at the table's URLs, to this machine alone, until Ctrl-C."
)
@click.option(
    "--port",
    type=click.IntRange(min=0, max=65_535),
    default=DEFAULT_PORT,
    show_default=True,
    help="laion: port in the URLs, and of --serve; 0: any free one.",
)
@click.option(
    "--base-url", metavar="URL", help="laion: beginning of the URLs, if another machine will serve DIRECTORY."
)
@click.option("--dry-run", is_flag=True, help="Print what would be written and where, and write nothing.")
@json_option
def command(
    dataset: Literal["coco", "imagenet", "laion"],
    directory: Path,
    images: int,
    odd: bool,
    annotated: bool,
    seed: int,
    serve: bool,
    port: int,
    base_url: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write original files of DATASET, made of real photographs, into DIRECTORY.

    The photographs come with scikit-image and scikit-learn; their sizes and qualities vary as in ImageNet. The
    archives have the names and layouts of the real ones; builds need --allow-partial, because the counts are not the
    published ones.

    laion is a table of URLs and the images behind them, some of which fail on purpose; expected.json says how each row
    ends.
    """
    if annotated and dataset != "coco":
        raise UsageError(f"--annotations: {dataset} has none; leave it out")
    if dry_run:
        facts = {"dry_run": True, "dataset": dataset, "directory": str(directory), "images": images}
        click.echo(json.dumps(facts) if as_json else f"{dataset}: {images:,} images would be written into {directory}")
        return
    if dataset == "laion":
        if odd:
            raise UsageError("laion always has its oddities; leave --odd out")
        if port == 0 and not serve:
            raise UsageError(
                "--port 0 needs --serve: the table contains the server's port; add --serve, or name a port"
            )
        if serve:
            _serve_laion(directory, images, seed, port, base_url, as_json)
        else:
            _write_laion(directory, images, seed, base_url or _loopback(port), as_json)
        return
    if serve or base_url is not None:
        raise UsageError(f"{dataset} is made of archives, which need no server; leave --serve and --base-url out")
    with BuildProgress(quiet=as_json) as progress:
        made = partial(progress.reading, "photographs")
        report = write_demo(
            "coco-annotated" if annotated else dataset, directory, images=images, odd=odd, seed=seed, progress=made
        )
    if as_json:
        click.echo(json.dumps(asdict(report), default=str))
        return
    for path in sorted(directory.iterdir()):
        click.echo(f"{path}  {human_bytes(path.stat().st_size)}")


def _serve_laion(directory: Path, images: int, seed: int, port: int, base_url: str | None, as_json: bool) -> None:
    from dataprep.demo.make import demo_server

    with demo_server(directory, port) as server:  # first, because the URLs contain its port
        here = _loopback(server.server_port)
        _write_laion(directory, images, seed, base_url or here, as_json)
        click.echo(f"serving {directory} at {here} until Ctrl-C", err=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _write_laion(directory: Path, images: int, seed: int, base_url: str, as_json: bool) -> None:
    from dataprep.demo.make import EXPECTED, TABLE, write_demo_laion

    with BuildProgress(quiet=as_json) as progress:
        ends = write_demo_laion(directory, base_url, images, seed, partial(progress.reading, "photographs"))
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
