"""`dataprep build module:NAME`, and what is left of a dataset when its class is gone."""

import json

import pytest

from tests.support.builds import FORMATS, dataprep, digests
from tests.support.converting import content, converted
from tests.support.finished import verify_here
from tests.support.own_data import annotated

CLASS = """
import json
from dataclasses import replace

from dataprep.sources import Feature, ImageDataset, SplitFacts, images_in


class Pets(ImageDataset):
    name = "pets"
    licence = "CC-BY-4.0"
    facts = {"train": SplitFacts(samples=9, repeats=2)}
    features = {"caption": Feature("text")}

    def enumerate(self, root, split):
        rows = [json.loads(line) for line in root.read("metadata.jsonl").split(b"\\n") if line]
        captions = {row["file_name"]: row["caption"] for row in rows}
        for image in images_in(root, ""):
            label = "old" if image.file < "005" else "new"
            yield replace(image, label=label, annotations={"caption": captions[image.file]})
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a class and pictures, in which commands run."""
    (tmp_path / "my_pets.py").write_text(CLASS)
    annotated(tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def build(*more, output="out", fmt="webdataset"):
    arguments = ["--source", "source", "--output", output, "--format", fmt, "--workers", 1, "--num-shards", 2]
    return dataprep("build", "my_pets:Pets", *arguments, *more)


@pytest.mark.parametrize("formats", [("webdataset",), pytest.param(FORMATS, marks=pytest.mark.long)], ids=len)
def test_a_dataset_of_a_class_is_read_without_it(folder, formats):
    """In every format: the soak, and test_own_dataset.py."""
    for fmt in formats:
        run = build(output=fmt, fmt=fmt)
        assert run.returncode == 0, run.stderr
    before = digests("webdataset")
    assert json.loads(build("--json", output="webdataset").stdout)["shards_built"] == 0
    (folder / "my_pets.py").unlink()
    assert digests("webdataset") == before
    for fmt in formats:
        assert content(fmt) == content("webdataset")
        assert verify_here(fmt, deep=True).verdict == "complete"
    assert "pets · webdataset" in dataprep("inspect", "webdataset").stdout
    manifest = converted("webdataset", "back", "tfrecord")
    assert (manifest.licence, manifest.splits[0].repeats["count"]) == ("CC-BY-4.0", 2)
    missing = build(output="again")
    assert missing.returncode == 2
    assert "no module my_pets is installed or in" in missing.stderr


def test_other_words_of_the_user_are_recorded(folder):
    run = build("--name", "cats", "--licence", "CC0-1.0", "--origin", "my garden", "--dry-run", "--json")
    own = json.loads(run.stdout)["options"]["own"]
    assert (own["name"], own["licence"], own["origin"]) == ("cats", "CC0-1.0", "my garden")


@pytest.mark.parametrize(
    ("more", "words"),
    [(["--split", "val"], "--split val: pets has train"), (["--name", "imagenet"], "choose another with --name")],
)
def test_options_that_do_not_fit_are_refused(folder, more, words):
    run = build(*more)
    assert run.returncode == 2
    assert words in run.stderr
