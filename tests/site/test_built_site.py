"""The site that `make site` has built: links lead somewhere, and options mean what `--help` says."""

from __future__ import annotations

import html
import inspect
import re
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest

import dataprep
from loaders.config import LoaderConfig
from scripts.agents import leaves
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


def plain(text: str) -> str:
    """Return the words of a piece of HTML or of a help text."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).replace("`", "").split())


def test_every_option_means_what_the_parser_says(pages):
    option = re.compile(r'<dt class="sig sig-object std" id="([^"]+)">.*?</dt>\n<dd>(.*?)</dd></dl>', re.DOTALL)
    shown = {
        name: plain(text.partition("<dl")[0].removeprefix("<p><strong>Required</strong>"))
        for path in pages
        if path.parent.name == "commands"
        for name, text in option.findall(path.read_text())
    }
    meant = {
        f"cmdoption-{leaf.words.replace(' ', '-')}-{min(each.opts, key=len).lstrip('-')}": " ".join(
            (each.help or "").split()
        )
        for leaf in leaves()
        for each in leaf.context.command.params
        if isinstance(each, click.Option) and not each.hidden
    }
    assert len(meant) > 500
    assert {name: shown.get(name) for name in meant} == {name: text.replace("`", "") for name, text in meant.items()}


def test_every_setting_and_argument_means_what_the_code_says():
    argument = re.compile(r"<li><p><strong>(\w+)</strong>(?: \(.*?\))? -- (.*?)</p></li>", re.DOTALL)
    settings = {(each.name, plain(html.escape(each.metadata["text"]))) for each in fields(LoaderConfig)}
    functions = [each for name in dataprep.__all__ if inspect.isfunction(each := getattr(dataprep, name))]
    arguments = {
        (name, plain(html.escape(text)))
        for function in functions
        for name, text in re.findall(
            r"^    ([a-z]\w*): (.*(?:\n {8}.*)*)", inspect.getdoc(function).partition("Args:\n")[2], re.MULTILINE
        )
        if function.__module__ == "dataprep"
    }
    assert len(arguments) > 100
    for module, meant in (("loaders", settings), ("dataprep", arguments)):
        page = (SITE / f"docs/reference/api/{module}.html").read_text()
        assert meant - {(name, plain(text)) for name, text in argument.findall(page)} == set()
