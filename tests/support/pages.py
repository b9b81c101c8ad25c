"""A page of ours as its parts, and what must not get into one."""

from __future__ import annotations

import re
from html.parser import HTMLParser

HOSTILE = "<script>alert(1)</script><img src=http://evil/ onerror=x>\"'&{{7*7}}$x$"
OUTSIDE = re.compile(r"https?:|//|javascript:|file:", re.IGNORECASE)


class Page(HTMLParser):
    """Tags, attributes, texts and styles of a page."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.styles: list[str] = []
        self._inside = ""
        self.feed(html)
        self.close()
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = tag

    def handle_data(self, data: str) -> None:
        (self.styles if self._inside == "style" else self.texts).append(data)
