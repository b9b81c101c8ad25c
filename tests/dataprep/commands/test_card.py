"""`dataprep card`, the cards that every build writes, and what verify and --overwrite do about them."""

import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest

import dataprep as functions
from dataprep.builder.cards import PUBLISHED, RESPONSIBLE
from dataprep.errors import UsageError
from tests.dataprep.builder.test_cards import read
from tests.support.adoption import adopt_here
from tests.support.builds import dataprep, succeeds
from tests.support.card_examples import CARDS as EXAMPLES
from tests.support.card_examples import FACTS, example_cards, plain
from tests.support.own_data import class_folders

SCHEMA = Path(__file__).parents[3] / "docs/eu-summary.schema.json"

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


def test_the_cards_of_the_documents_are_those_of_two_builds(tmp_path):
    """Written again by python -m tests.support.card_examples; each passes its schema, and mlcroissant."""
    found = example_cards(tmp_path)
    assert {name: plain(text) for name, text in found.items()} == {
        path.name: plain(path.read_text()) for path in EXAMPLES.iterdir() if path != FACTS
    }
    schema = json.loads(SCHEMA.read_text())
    names = {*(RESPONSIBLE | PUBLISHED).values(), "prov:wasDerivedFrom", "prov:wasGeneratedBy"}
    for name, url in {"coco-dup5": tmp_path / "coco-dup5", "laion": tmp_path / "data"}.items():
        jsonschema.validate(json.loads(found[f"{name}-eu-summary.json"]), schema)
        (url / "croissant.json").write_text(found[f"{name}-croissant.json"])
        assert names <= json.loads(found[f"{name}-croissant.json"]).keys()
        assert read(url, tmp_path / name)["errors"] == []


def test_facts_that_are_missing_are_asked_for_and_unknown_ones_refused(tmp_path):
    output = built(class_folders(tmp_path / "pets"), tmp_path / "out")
    facts = tmp_path / "facts.toml"
    facts.write_text('data_biases = "cats"\nlicensed_used = true\n')
    run = dataprep("card", output, "--facts", facts, "--complete")
    assert run.returncode == 1
    assert "add with --facts: data_limitations, personal_" in run.stderr
    summary = json.loads(dataprep("card", output, "--eu", "--json", "--facts", facts).stdout)
    assert {"provider", "licensed_modalities", "crawlers_used"} <= {*summary["unanswered"]}
    assert not {"data_biases", "licensed_used", "private_modalities", "crawl_period"} & {*summary["unanswered"]}
    assert "To be answered by the provider (`provider`)" in dataprep("card", output, "--eu").stdout
    facts.write_text('data_biasses = "cats"\n')
    with pytest.raises(UsageError, match="there is no fact data_biasses; did you mean data_biases"):
        functions.card(output, facts=facts)
    stated = tomllib.loads(FACTS.read_text()) | dict.fromkeys((*summary["unanswered"], "licensed_used"), False)
    facts.write_text("".join(f"{name} = {json.dumps(value, default=str)}\n" for name, value in stated.items()))
    assert dataprep("card", output, "--eu", "--facts", facts, "--complete").returncode == 0
