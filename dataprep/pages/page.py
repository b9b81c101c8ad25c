"""Renders a self-contained HTML file from a template: no external resources, every text escaped.

A page has at most one script, whose digest is in the page's policy, so that no other one can run.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dataprep.errors import UsageError, install_hint

_PACKAGE = "jinja2"


def has_report_packages() -> bool:
    """Return whether the package that renders pages is installed."""
    return find_spec(_PACKAGE) is not None


def require_report_packages() -> None:
    """Raise UsageError unless the package that renders pages is installed."""
    if not has_report_packages():
        raise UsageError(f"--html needs {_PACKAGE}, which is not installed: {install_hint('report')}")


def render_page(template: str, package: str = "dataprep", script: str | None = None, **values: Any) -> str:
    """Render a page, escaping every value.

    Args:
        template: Name of a file in the package's `data` folder.
        package: Package of the template, which can also extend and import templates of `dataprep`.
        script: Name of the file in the same folder that is the page's only script; None for a page without one.
        values: Values for the template, by the names that it uses.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    folders = [PackageLoader(name, "data") for name in dict.fromkeys((package, "dataprep"))]
    environment = Environment(
        loader=ChoiceLoader(folders), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    source = files(package).joinpath("data", script).read_text(encoding="utf-8") if script else ""
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return environment.get_template(template).render(values, script=Markup(source), script_digest=digest)


def write_page(page: str, path: Path) -> None:
    """Write a page to a file.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path}: cannot be written ({error.strerror}); choose another file") from error
