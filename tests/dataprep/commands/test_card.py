"""`dataprep card`, the cards that every build writes, and what verify and --overwrite do about them."""

import json
import re

from tests.support.adoption import adopt_here
from tests.support.builds import dataprep, succeeds
from tests.support.own_data import class_folders

CARDS = ("README.md", "croissant.json")


def built(source, output, *more):
    arguments = ["--source", source, "--output", output, "--format", "webdataset", "--workers", 1, *more]
    succeeds("build", "folder", *arguments)
    return output


def test_builds_write_cards_that_users_may_edit(tmp_path):
    source, output = class_folders(tmp_path / "pets"), tmp_path / "out"
    built(source, output)
    before = {name: (output / name).read_bytes() for name in CARDS}
    assert b"license: unknown" in before["README.md"]
    (output / "README.md").write_text("mine")
    (output / "croissant.json").unlink()
    built(source, output)  # the dataset is whole: only what is missing is written
    assert ((output / "README.md").read_text(), (output / "croissant.json").read_bytes()) == (
        "mine",
        before["croissant.json"],
    )
    verified = succeeds("verify", output)
    assert "card" in verified.stdout
    assert "README.md: it was edited" in verified.stdout
    kept = json.loads(dataprep("card", output, "--json").stdout)
    assert (kept["written"], kept["kept"]) == ([], ["README.md"])
    assert dataprep("card", output, "--overwrite").returncode == 0
    assert {name: (output / name).read_bytes() for name in CARDS} == before
    assert "README.md" not in dataprep("verify", output).stdout


def test_an_overwritten_dataset_takes_its_cards_with_it_but_not_those_of_the_user(tmp_path):
    source, output = class_folders(tmp_path / "pets"), tmp_path / "out"
    built(source, output)
    (output / "README.md").write_text("mine")
    built(source, output, "--name", "others", "--overwrite")
    assert (output / "README.md").read_text() == "mine"
    assert json.loads((output / "croissant.json").read_text())["name"] == "others"


def test_adopted_data_get_cards_only_on_request(tmp_path):
    data = class_folders(tmp_path / "data")
    adopt_here(data)
    assert not any((data / name).exists() for name in CARDS)
    shown = json.loads(dataprep("card", data, "--dry-run", "--json").stdout)
    assert sorted(shown) == sorted(CARDS)
    assert not any((data / name).exists() for name in CARDS)
    assert dataprep("card", data).returncode == 0
    assert (data / "README.md").read_text() == shown["README.md"]


def test_a_build_names_a_card_of_another_plan_that_stays(tmp_path):
    source, output = class_folders(tmp_path / "pets"), tmp_path / "out"
    built(source, output)
    card = output / "README.md"
    card.write_text(re.sub("Plan: `[0-9a-f]{8}", "Plan: `00000000", card.read_text()))
    run = dataprep("build", "folder", "--source", source, "--output", output, "--format", "webdataset", "--workers", 1)
    assert run.returncode == 0 and f"dataprep card {output} --overwrite" in run.stderr
    assert dataprep("card", output, "--overwrite").returncode == 0
    assert "Plan: `00000000" not in card.read_text()
