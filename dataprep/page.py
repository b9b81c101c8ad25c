"""One self-contained HTML file from a template: no script, nothing fetched, every text escaped.

Templates are files of a package's `data` folder; they extend `page.html.j2` of this one, which has the style
that all share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dataprep.errors import UsageError


def require_report_packages() -> None:
    """Raise UsageError unless what a page is made with is installed."""
    try:
        import jinja2
        import matplotlib

        del jinja2, matplotlib
    except ImportError as error:
        raise UsageError(
            f"--html needs {error.name}, which is not installed: pip install 'dataprep[report]'"
        ) from error


def render_page(template: str, package: str = "dataprep", **values: Any) -> str:
    """The page.

    Args:
        template: A file in the package's `data` folder.
        package: Whose template it is.
        values: What it shows; drawings are Markup, everything else is escaped.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    folders = [PackageLoader(name, "data") for name in dict.fromkeys((package, "dataprep"))]
    environment = Environment(
        loader=ChoiceLoader(folders), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template(template).render(values)


def write_page(page: str, path: Path) -> None:
    """Write it.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path}: cannot be written ({error.strerror}); choose another file") from error
