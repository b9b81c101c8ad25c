"""Known reasons of failed rows: those of the documents, those that a dataset counts, and no other."""

from __future__ import annotations

import re

import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.errors import UsageError
from dataprep.fetched.newest import MAY_PASS, Choice
from dataprep.fetched.reasons import HTTP_CODE, check_reasons
from dataprep.storage import open_storage
from tests.support.markdown import ROOT


@pytest.fixture
def manifest(fetched):
    return read_manifest(open_storage(str(fetched("webdataset"))))


def documented() -> set[str]:
    """Reasons of failed rows that docs/fetching.md and docs/laion.md name."""
    statuses = (ROOT / "docs" / "fetching.md").read_text().split("## Statuses")[1].split("\n## ")[0]
    found = {name.replace("_", " ") for name in re.findall(r"^\| `(\w+)` \|", statuses, re.MULTILINE)}
    rows = re.findall(r"^\| `failed_\w+` \|(.*)\|$", (ROOT / "docs" / "laion.md").read_text(), re.MULTILINE)
    return found.union(*(re.findall(r"`([^`]+)`", row) for row in rows)) - {"http", "success"}


def test_every_reason_that_the_documents_name_is_known(manifest):
    names = documented()
    assert len(names) > 25
    check_reasons(Choice(reasons=tuple(names | MAY_PASS)), manifest)


def test_reasons_that_a_dataset_counts_are_known(manifest):
    reasons = manifest.splits[0].reasons
    assert any(HTTP_CODE.fullmatch(reason) for reason in reasons)
    reasons["made up"] = 1
    check_reasons(Choice(reasons=("http 404", "http 599", "made up")), manifest)


@pytest.mark.parametrize(
    ("reason", "nearest"),
    [
        ("Timeout", "timeout"),
        ("host_busy", "host busy"),
        ("404", "http 404"),
        ("HTTP 403", "http 403"),
        ("http403", "http 403"),
        ("undecodeable", "undecodable"),
    ],
)
def test_an_unknown_reason_is_refused_with_the_nearest(manifest, reason, nearest):
    with pytest.raises(UsageError, match=rf"^--reason '{reason}': no row fails .*; did you mean {nearest}\?$"):
        check_reasons(Choice(reasons=("timeout", reason)), manifest)


@pytest.mark.parametrize(
    "reason", ["", "success", "failed_to_download", "http 200", "http 999", "http 4040", "http abc"]
)
def test_what_is_no_reason_is_refused(manifest, reason):
    with pytest.raises(UsageError, match="expected http and a status code such as http 404") as refused:
        check_reasons(Choice(reasons=(reason,)), manifest)
    assert f"did you mean {reason}?" not in str(refused.value)
