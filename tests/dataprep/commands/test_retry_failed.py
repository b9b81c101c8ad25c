"""`dataprep retry-failed`: which rows it would try, what it says of those that it tried, and what it must be told."""

import json

from click.testing import CliRunner

from dataprep.builder.cards import cards_of, write_cards
from dataprep.commands.retry_failed import command
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.paths import CROISSANT, README
from dataprep.storage import open_storage
from tests.support.builds import refuses, succeeds
from tests.support.fetched import FAULTS, PASSING, build_table, check_built
from tests.support.picture_web import WEB


def called(*words: object) -> str:
    """What the command prints; an error is raised."""
    result = CliRunner().invoke(command, [str(word) for word in (*words, *WEB)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_dry_run_counts_rows_by_reason(fetched):
    url = str(fetched("webdataset"))
    assert json.loads(called(url, "--dry-run", "--json")) == {
        "url": url,
        "rows": len(PASSING),
        "reasons": {"http 503": 3, "http 429": 1, "http 500": 1},
    }
    assert called(url, "--dry-run", "--reason", "http 404") == (f"{url}: 2 rows would be retried\n  http 404: 2\n")
    assert called(url, "--dry-run", "--all").startswith(f"{url}: {len(FAULTS)} rows would be retried\n")


def test_a_mistyped_reason_is_an_error_and_one_that_no_row_has_is_not(fetched):
    url = str(fetched("webdataset"))
    for words in (["--dry-run"], ["--workers", 1]):
        run = refuses("retry-failed", url, "--reason", "tiemout", *WEB, *words)
        line = run.stderr.splitlines()[-1]
        assert line.startswith(
            "dataprep: --reason 'tiemout': no row fails for this reason, expected http and a status "
        )
        assert " host busy, " in line
        assert line.endswith("; did you mean timeout?")
    assert called(url, "--reason", "timeout", "--workers", 1).startswith(
        f"{url}: no rows to retry; the dataset stays at revision 1\n"
    )


def test_what_came_is_said_and_then_that_nothing_is_left(web, tmp_path):
    url, storage = str(tmp_path / "out"), open_storage(str(tmp_path / "out"))
    write_cards(storage, build_table(web, tmp_path, url, "webdataset"))
    storage.replace(README, b"edited", storage.read(README))
    web.faults = {2: 404}
    words = ("retry-failed", url, *WEB, "--workers", 1)
    run = succeeds(*words)
    assert f"{url} is complete at revision 2: 4 of 5 rows were fetched, in 1 new shard and " in run.stdout
    assert "http 404: 3\n" in run.stdout
    cards = {README: b"edited", CROISSANT: cards_of(read_manifest(storage))[CROISSANT]}
    assert {name: storage.read(name) for name in cards} == cards
    storage.replace(README, cards_of(read_manifest(storage))[README], b"edited")
    check_built(url)
    assert called(url, "--workers", 1).startswith(f"{url}: no rows to retry; the dataset stays at revision 2\n")
