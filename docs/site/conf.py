"""Configuration of Sphinx for the documentation site: `make site` writes it to build/site.

The documents are read where they are, as GitHub shows them; nothing in them is made for Sphinx alone.
"""

from __future__ import annotations

import shutil
from typing import Any

import docstrings
import navigation
import reference
import torch_xla  # noqa: F401  before TensorFlow, or it crashes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from dataprep import __version__

project = "dataprep"
version = release = __version__
copyright = "the authors of dataprep; Apache License 2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
root_doc = navigation.FRONT
include_patterns = ["*.md", "docs/**.md", "docs/reference/**.rst", "benchmarks/*.md"]
exclude_patterns = [".*", "build", "demo", "tests"]  # not searched for documents, as they hold many files
default_role = "code"
nitpicky = True
smartquotes = False  # they make one dash of the two of an option

myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
napoleon_use_rtype = False
strip_signature_backslash = True  # with it Napoleon escapes the end of a name such as except_

html_theme = "furo"
html_title = "dataprep"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_favicon = "static/icon.svg"
html_copy_source = False
html_show_sphinx = False


def add_contents(_app: Sphinx, page: str, source: list[str]) -> None:
    """Give the first page the site's side bar, and lead links to a folder to its README.md, as GitHub does."""
    source[0] = source[0].replace("decisions/)", "decisions/README.md)") + navigation.contents(page)


def level_headings(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _document: object) -> None:
    """Tell screen readers the level of the headings in the side bar."""
    side_bar = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = side_bar.replace('role="heading"', 'role="heading" aria-level="2"')


def copy_front(app: Sphinx, error: Exception | None) -> None:
    """Make the first page index.html, too, and add llms.txt, whose links lead to pages of the site."""
    if error is None:
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")
        text = (navigation.ROOT / "llms.txt").read_text()
        (app.outdir / "llms.txt").write_text(text.replace(".md): ", ".html): "))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what the site adds to Sphinx."""
    reference.write_pages()
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", docstrings.mark_docstring, priority=400)  # before Napoleon
    for part in ("description", "epilog", "options"):
        app.connect(f"sphinx-click-process-{part}", docstrings.escape_help)
    app.connect("missing-reference", docstrings.link_types)
    app.connect("html-page-context", docstrings.list_parameters)
    app.connect("html-page-context", level_headings, priority=900)  # after the theme has made the side bar
    app.connect("build-finished", copy_front)
    app.add_lexer("csv", TextLexer)
    return {"parallel_read_safe": True}
