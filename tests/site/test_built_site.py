"""The site that `make site` has built: every link leads somewhere, and nothing comes from another host."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.markdown import ROOT

SITE = ROOT / "build/site"
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Attributes whose address a browser asks for by itself."""


class Page(HTMLParser):
    """Names and addresses in a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in LOADING and LOADING[tag] in values:
            self.loaded.append(values[LOADING[tag]])


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    found = {path: Page(path) for path in SITE.rglob("*.html")}
    assert SITE / "index.html" in found, "run make site first"
    return found


def faults(pages: dict[Path, Page]) -> list[str]:
    """List the addresses in pages that lead nowhere, and those of other hosts that a browser would ask for."""
    found = []
    for path, page in pages.items():
        for address in (*page.links, *page.loaded):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                wrong = address in page.loaded and parts.scheme != "data"
            else:
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                fragment = unquote(parts.fragment)
                wrong = not target.exists() or bool(
                    fragment and target in pages and fragment not in pages[target].anchors
                )
            if wrong:
                found.append(f"{path.name}: {address}")
    return found


def test_every_link_of_the_site_leads_somewhere_and_nothing_comes_from_another_host(pages):
    assert len(pages) > 60
    assert faults(pages) == []
