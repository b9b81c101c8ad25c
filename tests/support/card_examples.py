"""The cards of docs/cards: of demo images of COCO, and of a table of URLs, both built here.

python -m tests.support.card_examples     writes them again
"""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import dataprep
from dataprep.demo.make import write_demo
from tests.support.rechecked import fetched_sites

CARDS = Path(__file__).parents[2] / "docs/cards"
FACTS = CARDS / "facts.toml"
_MEASURED = re.compile(r"[0-9a-f]{64}|[0-9][0-9,.]*(?= (?:B|kB|MB|bytes)\b)")
"""Digests and sizes, which versions of codecs change."""


def plain(text: str) -> str:
    """Return a card without its digests and sizes."""
    return _MEASURED.sub("N", text)


def example_cards(folder: Path) -> Mapping[str, str]:
    """Build two datasets; return the texts of their cards by the names in docs/cards."""
    write_demo("coco", folder / "coco", images=60, odd=False)
    dataprep.build_dataset(
        "coco-dup5",
        source=str(folder / "coco"),
        output=str(folder / "coco-dup5"),
        format="webdataset",
        allow_partial=True,
        num_shards=2,
        workers=1,
    )
    found = _cards(folder / "coco-dup5", "coco-dup5")
    with fetched_sites(folder, 300, 100, random.Random(0)) as sites:
        return found | _cards(sites.url, "laion")


def _cards(url: object, name: str) -> dict[str, str]:
    cards = dataprep.card(str(url), facts=FACTS, dry_run=True) | dataprep.card(str(url), facts=FACTS, eu=True)
    return {f"{name}-{file}": cards[file] for file in ("croissant.json", "eu-summary.md", "eu-summary.json")}


def main() -> None:
    """Write the cards."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in example_cards(Path(folder)).items():
            (CARDS / name).write_text(text)


if __name__ == "__main__":
    main()
