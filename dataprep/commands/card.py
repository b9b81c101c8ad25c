"""`dataprep card`: writes the cards of a dataset, `README.md` and `croissant.json`."""

from __future__ import annotations

import json

import click

from dataprep.arguments import StrictCommand
from dataprep.builder.cards import cards_of, read_card, replace_cards, write_cards
from dataprep.builder.finished import readable_manifest
from dataprep.commands.options import json_option
from dataprep.storage import open_storage

EPILOG = """\b
Examples:
  dataprep card shards
  dataprep card gs://bucket/shards --dry-run
  dataprep card shards --overwrite
"""


@click.command("card", cls=StrictCommand, epilog=EPILOG)
@click.argument("url")
@click.option("--dry-run", is_flag=True, help="Print the cards, and write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace existing cards, also those that were edited.")
@json_option
def command(url: str, dry_run: bool, overwrite: bool, as_json: bool) -> None:
    """Write README.md and croissant.json for the dataset at URL, from its manifest.

    README.md has the head that the Hugging Face Hub reads: licence, tasks, size, and which files belong to which
    split. croissant.json describes files and records in the words of MLCommons. Builds write both; this command writes
    them for older and for adopted datasets. Existing files stay as they are.
    """
    storage = open_storage(url)
    manifest = readable_manifest(storage)
    cards = cards_of(manifest)
    if dry_run:
        texts = {name: data.decode() for name, data in cards.items()}
        click.echo(json.dumps(texts) if as_json else "\n".join(f"{storage.url_of(n)}:\n{t}" for n, t in texts.items()))
        return
    written = replace_cards(storage, manifest) if overwrite else write_cards(storage, manifest)
    kept = [name for name, data in cards.items() if name not in written and read_card(storage, name) != data]
    if as_json:
        click.echo(json.dumps({"url": storage.url, "written": written, "kept": kept}))
        return
    for name in cards:
        what = "written" if name in written else "is another, and stays; replace it with --overwrite"
        click.echo(f"{storage.url_of(name)} {what if name in (*written, *kept) else 'is up to date'}")
