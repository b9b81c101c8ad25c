"""What the documentation site is made of. `make site` builds it, `make soak SHOW=site` opens it in a browser."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from dataprep.cli import COMMANDS
from tests.support.markdown import DOCUMENTS, ROOT, anchors, links_to_headings

SITE = ROOT / "docs/site"


@pytest.fixture(scope="module")
def navigation():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SITE)
        yield importlib.import_module("navigation")


@pytest.fixture(scope="module")
def reference(navigation):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SITE)
        yield importlib.import_module("reference")


def test_every_document_stands_in_the_side_bar_once(navigation):
    parts = navigation.navigation()
    pages = [page for listed in parts.values() for page in listed]
    below = [line.strip().removeprefix("/") for page in navigation.BELOW for line in toctree(navigation, page)]
    found = [page for page in (navigation.FRONT, *pages, *below) if not page.startswith(navigation.REFERENCE)]
    assert sorted(f"{page}.md" for page in found) == DOCUMENTS
    assert sum(page.startswith(navigation.REFERENCE) for page in pages) == 2


def toctree(navigation, page: str) -> list[str]:
    return [line for line in navigation.contents(page).splitlines() if line.startswith("/")]


def test_a_document_that_no_part_lists_comes_under_the_last(navigation, monkeypatch):
    monkeypatch.setattr(navigation, "documents", lambda: ["README", "DATA", "NEWS", "docs/decisions/README"])
    assert navigation.navigation()["The project"][-1] == "NEWS"


def test_every_command_has_a_page(reference, navigation, monkeypatch, tmp_path):
    (tmp_path / navigation.REFERENCE / "commands").mkdir(parents=True)
    (tmp_path / navigation.REFERENCE / "commands/removed.rst").touch()
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    monkeypatch.setattr(reference, "DOORS", {"dataprep.storage": reference.DOORS["dataprep.storage"]})
    pages = reference.write_pages()
    written = {path.relative_to(tmp_path).with_suffix("").as_posix() for path in tmp_path.rglob("*.rst")}
    assert written == set(pages)
    assert {f"{navigation.REFERENCE}/commands/{name}" for name in COMMANDS} < written
    assert f"{navigation.REFERENCE}/commands/dataprep-train-vit" in written
    assert (
        ":members: ObjectInfo, Storage, open_storage"
        in (tmp_path / navigation.REFERENCE / "api/dataprep.storage.rst").read_text()
    )


def test_modules_of_the_training_programs_exist(reference):
    assert [module for module in reference.SCRIPTS.values() if not source_of(module).exists()] == []


def test_every_name_in_the_reference_has_a_docstring(reference):
    """Adapters are read and not imported, as they import their frameworks."""
    missing = []
    for module, door in reference.DOORS.items():
        has_list = door.names or "__all__" in source_of(module).read_text()
        if has_list and not module.startswith("loaders."):
            imported = importlib.import_module(module)
            missing += [name for name in reference.described(module) if not inspect.getdoc(getattr(imported, name))]
        else:
            found = [node for node in ast.parse(source_of(module).read_text()).body if isinstance(node, NAMED)]
            missing += [node.name for node in found if node.name[0] != "_" and not ast.get_docstring(node)]
    assert set(missing) <= EXPLAINED_TOGETHER


NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
EXPLAINED_TOGETHER = {
    *(
        "AccessError",
        "BuildError",
        "ConflictError",
        "CredentialsError",
        "FormatError",
        "FullError",
        "ImageError",
        "SourceError",
        "StorageError",
    ),
    *("UnansweredError", "UndecidedError", "UsageError", "VerificationError"),
}
"""Classes that the docstring of their module explains."""


def source_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_to_headings_lead_to_headings(document):
    assert [f"{path}#{name}" for path, name in links_to_headings(document) if name not in anchors(path)] == []


def test_anchors_are_those_of_github(tmp_path):
    document = tmp_path / "some.md"
    document.write_text("# What `a_b` is\n\n```sh\n# not this\n```\n## Beam: on this machine!\n## Limits\n### Limits\n")
    assert anchors(str(document)) == {"what-a_b-is", "beam-on-this-machine", "limits", "limits-1"}
