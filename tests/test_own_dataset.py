"""docs/own-dataset.md is true: its class is written to a file and built by the commands that follow."""

from __future__ import annotations

import json

from tests.support.builds import dataprep
from tests.support.converting import content
from tests.support.markdown import blocks, commands, words_of
from tests.support.own_data import picture, write_files
from tests.support.raw_zip import zip_of

DOCUMENT = "docs/own-dataset.md"


def test_the_example_is_built_in_every_format_by_the_commands_of_the_document(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = (block.text for block in blocks(DOCUMENT) if block.info == "python")
    (tmp_path / "my_pets.py").write_text(code)
    assert len([line for line in code.splitlines() if line.strip()]) < 40
    rows = {
        str(number): {
            "split": "train" if number < 5 else "val",
            "caption": f"picture {number}",
            "weights": [0.5] * number,
            "animal": ("cat", "dog")[number % 2],
        }
        for number in range(7)
    }
    photos = zip_of({f"{number}.jpg": picture(number) for number in range(7)})
    write_files(tmp_path / "pets", {"photos.zip": photos, "rows.json": json.dumps(rows)})
    shown = [
        words_of(line.text, "dataprep") for block in blocks(DOCUMENT) if block.info == "sh" for line in commands(block)
    ]
    assert [words[0] for words in shown] == ["build", "verify"]
    for words in shown:
        run = dataprep(*words)
        assert run.returncode == 0, run.stderr
    found = content("shards")
    assert (found["classes"], sorted(found["features"])) == (("cat", "dog"), ["caption", "weights"])
    assert {split: len(samples) for split, (_, samples) in found["splits"].items()} == {"train": 5, "val": 2}
    for fmt in ("tfrecord", "imagefolder"):
        words = [fmt if word == "webdataset" else f"shards-{fmt}" if word == "shards" else word for word in shown[0]]
        assert dataprep(*words).returncode == 0
        assert content(f"shards-{fmt}") == found
