"""Options and steps that the commands for a user's own data share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click

from dataprep.builder.plan import BuildOptions
from dataprep.builder.request import BuildRequest
from dataprep.commands.build import build_images
from dataprep.commands.build_options import image_policy, pairs
from dataprep.commands.build_run import Run
from dataprep.commands.options import Finite
from dataprep.dataset.documents import JsonObject
from dataprep.errors import UsageError
from dataprep.sources import OwnData, own_name_fault
from dataprep.sources.base import SPLITS, UNSTATED, name_from
from dataprep.sources.tree import ARCHIVES
from dataprep.storage import open_storage
from dataprep.storage.hub import is_hub, pinned

Command = Callable[..., None]

RERUN = """\b
After an interruption, a crash or a full disk run the same command again: it builds only what is missing, and the
result has the same bytes.
"""


_OPTIONS = (
    click.option(
        "--name",
        help="Name of the dataset.  [default: made of the last part of --source; of its folder if that is a table]",
    ),
    click.option("--licence", default=UNSTATED, show_default=True, help="Licence of the pictures, for the manifest."),
    click.option(
        "--origin", default=UNSTATED, show_default=True, help="Where the pictures come from, for the manifest."
    ),
    click.option(
        "--join-classes",
        is_flag=True,
        help="Make one class of those whose names differ only in case or Unicode form, such as Cat and cat.",
    ),
    click.option(
        "--val-fraction",
        type=Finite(0, 1, max_open=True),
        default=0.0,
        help="Share of train that becomes val. A picture's key and --seed decide, so new pictures move no others.",
    ),
    click.option(
        "--group-by",
        metavar="COLUMN",
        help="With --val-fraction, keep pictures with the same value in this column together.",
    ),
    click.option(
        "--default",
        "defaults",
        multiple=True,
        metavar="COLUMN=VALUE",
        callback=pairs,
        help="Value for pictures that have none in this column; may be repeated.",
    ),
    click.option("--drop", multiple=True, metavar="COLUMN", help="Leave this column out; may be repeated."),
)
_OF_OWN_DATA = (
    *("licence", "origin", "label_from", "val_fraction", "group_by", "defaults"),
    *("text_files", "image_column", "key_from", "join_classes"),
)


def own_options(command: Command) -> Command:
    """Add the options about a user's own data; `build_own` takes them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def place_of(source: str, is_file: Callable[[str], bool]) -> tuple[str, str]:
    """Return the root of the originals, and the name of the file if the source is a single one.

    Args:
        source: The user's URL.
        is_file: Returns whether a name is that of a file that may be a source.
    """
    url = open_storage(source).url.rstrip("/")
    if not is_file(url) or ("://" not in url and Path(url).is_dir()):
        return source, ""
    root, _, name = url.rpartition("/")
    return root or "/", name


def build_own(
    dataset: str, place: tuple[str, str], run: Run, engine_options: tuple[str, ...], options: JsonObject
) -> None:
    """Build a user's own data.

    Args:
        dataset: Kind of the data.
        place: Root of the originals, and the only file or folder to read below it, or an empty text.
        run: Options of the run.
        engine_options: Options of the engine, given after `--`.
        options: All other options of the command.
    """
    root, only = place
    if is_hub(root):
        root = _on_hub(root, options)
    own = _own_data(open_storage(root).url, only, options)
    images = image_policy(options)
    splits = tuple(options.pop("splits"))
    for split in splits:
        if split not in SPLITS:
            raise UsageError(f"--split {split}: expected one of {', '.join(SPLITS)}")
    output, overwrite, ratio = (options.pop(name) for name in ("output", "overwrite", "max_reject_ratio"))
    request = BuildRequest(
        options=BuildOptions(
            dataset=dataset, format=options.pop("format_name"), splits=splits, images=images, own=own, **options
        ),
        source_url=root,
        output_url=output,
        max_reject_ratio=ratio or 0.0,
        overwrite=overwrite,
    )
    build_images(request, run, engine_options)


def _on_hub(url: str, options: JsonObject) -> str:
    """Return the URL of a source on the Hub with its commit, and fill in what its repository says about itself."""
    source = pinned(url)
    options["name"] = options["name"] or name_from(source.name)
    if options["origin"] == UNSTATED:
        options["origin"] = source.origin
    if options["licence"] == UNSTATED and source.licence:
        options["licence"] = source.licence
    return source.url


def _own_data(root: str, only: str, options: JsonObject) -> OwnData:
    """Remove the options about the user's own data from a command's options, and return them."""
    is_archive = only.lower().rpartition(".")[2] in ARCHIVES
    name = options.pop("name") or name_from(f"{root}/{only}" if is_archive else root)
    if fault := own_name_fault(name):
        raise UsageError(f"{fault}; choose another with --name")
    own = {key: options.pop(key) for key in _OF_OWN_DATA if key in options}
    return OwnData(
        name=name,
        archive=only,
        split_seed=options["seed"] if own["val_fraction"] else 0,
        drop=tuple(sorted(options.pop("drop"))),
        pass_over=_passed_over(options.pop("pass_over", ()), own.get("text_files", ())),
        **own,
    )


def _passed_over(values: Iterable[str], text_files: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the files to leave out as `OwnData.pass_over` has them: suffixes, and patterns of names.

    Raises:
        UsageError: A value names a folder, or leaves out all files that --text-files asks for.
    """
    found = {value.lower() for value in values}
    found = {value.lstrip(".") if value.rfind(".") <= 0 else value for value in found}
    for value in sorted(found):
        if "/" in value or not value:
            raise UsageError(f"--pass-over {value}: expected a suffix or the name of a file, such as heic or notes.txt")
        for name, suffix in text_files:
            if value in (suffix, f"*.{suffix}"):
                raise UsageError(
                    f"--pass-over {value} leaves out the files that --text-files {name} stores; leave one of the two "
                    "out, or name single files, such as --pass-over notes.txt"
                )
    return tuple(sorted(found))
