"""`dataprep demo-data`: small originals in the true archive layouts."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Literal

import click

from dataprep.commands.options import human_bytes, json_option
from dataprep.commands.progress import BuildProgress
from dataprep.demo_data import write_demo
from dataprep.errors import UsageError

DEFAULT_PORT = 8000

EPILOG = f"""\b
Examples:
  dataprep demo-data coco originals
  dataprep demo-data imagenet originals --images 2000 --odd
  dataprep demo-data laion demo --images 100 --serve     on http://127.0.0.1:{DEFAULT_PORT}
"""


@click.command("demo-data", epilog=EPILOG)
@click.argument("dataset", type=click.Choice(["coco", "imagenet", "laion"]))
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--images",
    type=click.IntRange(min=20),
    default=400,
    show_default=True,
    help="Of the split train; val comes on top. Of laion, rows of the table.",
)
@click.option("--odd", is_flag=True, help="Add the oddities of the real datasets: PNG, CMYK, truncated, …")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--serve", is_flag=True, help="laion: answer at the table's URLs, for this machine alone, until Ctrl-C.")
@click.option(
    "--port",
    type=click.IntRange(min=0, max=65_535),
    default=DEFAULT_PORT,
    show_default=True,
    help="laion: of the URLs and of --serve; 0 takes a free one.",
)
@click.option("--base-url", metavar="URL", help="laion: where DIRECTORY will be served, if not on this machine.")
@json_option
def command(
    dataset: Literal["coco", "imagenet", "laion"],
    directory: Path,
    images: int,
    odd: bool,
    seed: int,
    serve: bool,
    port: int,
    base_url: str | None,
    as_json: bool,
) -> None:
    """Write original files of DATASET, made of real photographs, into DIRECTORY.

    The photographs are those that scikit-image and scikit-learn ship; sizes and qualities follow ImageNet's. The
    archives have the names and layouts of the real ones, so every command works on them, with --allow-partial
    because the counts are not the published ones.

    laion is a table of URLs and the images behind them, some rows odd; expected.json says what becomes of each.
    """
    if dataset == "laion":
        if odd:
            raise UsageError("laion has its oddities always; leave --odd out")
        if port == 0 and not serve:
            raise UsageError("--port 0 needs --serve: the table has the port that is found; add it, or name a port")
        if serve:
            _serve_laion(directory, images, seed, port, base_url, as_json)
        else:
            _write_laion(directory, images, seed, base_url or _loopback(port), as_json)
        return
    if serve or base_url is not None:
        raise UsageError(f"{dataset} is made of archives, which need no server; leave --serve and --base-url out")
    with BuildProgress(quiet=as_json) as progress:
        made = partial(progress.reading, "photographs")
        report = write_demo(dataset, directory, images=images, odd=odd, seed=seed, progress=made)
    if as_json:
        click.echo(json.dumps(asdict(report), default=str))
        return
    for path in sorted(directory.iterdir()):
        click.echo(f"{path}  {human_bytes(path.stat().st_size)}")


def _serve_laion(directory: Path, images: int, seed: int, port: int, base_url: str | None, as_json: bool) -> None:
    from dataprep.laion.demo import demo_server

    with demo_server(directory, port) as server:  # first: the URLs have its port
        here = _loopback(server.server_port)
        _write_laion(directory, images, seed, base_url or here, as_json)
        click.echo(f"serving {directory} at {here} until Ctrl-C", err=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _write_laion(directory: Path, images: int, seed: int, base_url: str, as_json: bool) -> None:
    from dataprep.laion.demo import EXPECTED, TABLE, write_demo_laion

    with BuildProgress(quiet=as_json) as progress:
        ends = write_demo_laion(directory, base_url, images, seed, partial(progress.reading, "photographs"))
    statuses = dict(Counter(end.status for end in ends))
    if as_json:
        table, expected = str(directory / TABLE), str(directory / EXPECTED)
        click.echo(json.dumps({"table": table, "expected": expected, "base_url": base_url, "statuses": statuses}))
        return
    counts = ", ".join(f"{status} {count:,}" for status, count in statuses.items())
    click.echo(f"{directory / TABLE}  {images:,} URLs at {base_url}, which the same command with --serve answers")
    click.echo(f"{directory / EXPECTED}  what becomes of them: {counts}")


def _loopback(port: int) -> str:
    return f"http://127.0.0.1:{port}"
