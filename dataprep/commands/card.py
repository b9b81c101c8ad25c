"""`dataprep card`: writes the cards of a dataset, `README.md`, `croissant.json` and for tars `_info.json`."""

from __future__ import annotations

import json

import click

from dataprep.arguments import OTHER, READ, WRITE, Place, Request, command_of, function_of, option, request
from dataprep.builder.cards import cards_of, read_card, replace_cards, write_cards
from dataprep.builder.finished import readable_manifest
from dataprep.storage import Storage, open_storage

EPILOG = """\b
Examples:
  dataprep card shards
  dataprep card gs://bucket/shards --dry-run
  dataprep card shards --overwrite
"""


@request
class Card(Request):
    """Write README.md, croissant.json and for WebDataset shards _info.json for the dataset at URL, from its manifest.

    README.md has the head that the Hugging Face Hub reads: licence, tasks, size, and which files belong to which
    split. croissant.json describes files and records in the words of MLCommons. timm reads the counts in _info.json.
    Builds write all of them; this command writes them for older datasets, and the first two for adopted ones. Existing
    files stay as they are.
    """

    url: Place = option("Folder or gs:// prefix of the dataset.", metavar="URL", kw_only=False, group=READ)
    dry_run: bool = option("Print the cards, and write nothing.", default=False, group=OTHER)
    overwrite: bool = option("Replace existing cards, even edited ones.", default=False, group=WRITE)


def _cards(asked: Card) -> dict[str, str]:
    """Return the text of each card by its file name; without `dry_run` they are written."""
    return _written(asked)[0]


def _written(asked: Card) -> tuple[dict[str, str], Storage, list[str], list[str]]:
    """Write cards; return their texts and places, which were written, and which existing ones stay."""
    storage = open_storage(str(asked.url))
    manifest = readable_manifest(storage)
    cards = cards_of(manifest)
    texts = {name: data.decode() for name, data in cards.items()}
    if asked.dry_run:
        return texts, storage, [], []
    written = replace_cards(storage, manifest) if asked.overwrite else write_cards(storage, manifest)
    kept = [name for name, data in cards.items() if name not in written and read_card(storage, name) != data]
    return texts, storage, list(written), kept


def _print(asked: Card, *, as_json: bool) -> None:
    texts, storage, written, kept = _written(asked)
    if asked.dry_run:
        click.echo(json.dumps(texts) if as_json else "\n".join(f"{storage.url_of(n)}:\n{t}" for n, t in texts.items()))
        return
    if as_json:
        click.echo(json.dumps({"url": storage.url, "written": written, "kept": kept}))
        return
    for name in texts:
        what = "written" if name in written else "differs, and stays; replace it with --overwrite"
        click.echo(f"{storage.url_of(name)} {what if name in (*written, *kept) else 'is up to date'}")


card = function_of(Card, _cards, "card")
command = command_of(Card, _print, "card", epilog=EPILOG)
