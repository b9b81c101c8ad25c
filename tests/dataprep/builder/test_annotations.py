"""Annotations of an image folder: one line an image, as Hugging Face's ImageFolder reads them."""

import json

import pytest

from dataprep.builder.shard import annotation_files
from dataprep.dataset.features import Feature
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import FormatError
from dataprep.formats.imagefolder import annotations_of, metadata_line
from dataprep.storage import open_storage
from tests.support.own_data import annotated, annotated_rows, build_own, stored_values

FEATURES = {"caption": Feature("text")}


def test_only_an_image_folder_with_features_has_files():
    assert annotation_files("imagefolder", FEATURES, ["train", "val"]) == ["train/metadata.jsonl", "val/metadata.jsonl"]
    assert annotation_files("imagefolder", {}, ["train"]) == annotation_files("webdataset", FEATURES, ["train"]) == []


def test_every_image_has_its_line(tmp_path, bucket_url):
    source = annotated(tmp_path / "source")
    expected = {}
    for row in annotated_rows():
        folder, _, name = row["file_name"].rpartition("/")
        expected[f"{folder or 'images'}/{name}"] = stored_values(row)
    written = []
    for output in (tmp_path / "out", f"{bucket_url}/out"):
        build_own(source, output, "imagefolder")
        storage = open_storage(str(output))
        lines = storage.read("train/metadata.jsonl").splitlines()
        documents = {document.pop("file_name"): document for document in map(json.loads, lines)}
        assert documents == expected
        assert all(storage.stat(f"train/{file}") for file in documents)
        (entry,) = read_manifest(storage).files
        assert (entry["file"], entry["bytes"]) == ("train/metadata.jsonl", sum(len(line) + 1 for line in lines))
        written.append(lines)
    assert written[0] == written[1]


@pytest.mark.parametrize("line", [b"", b"{}\n", b"[]\n", b"x\n", b'{"caption":"a","file_name":7}\n', b"[" * 100_000])
def test_other_lines_are_refused(line):
    with pytest.raises(FormatError):
        annotations_of(line, FEATURES)


def test_lines_come_back():
    for class_name in ("cats", ""):
        line = metadata_line("cats/1.jpg", b'{"caption":"a"}', class_name)
        assert annotations_of(line, FEATURES) == ("cats/1.jpg", b'{"caption":"a"}')
    with pytest.raises(FormatError, match="as a build writes them"):
        annotations_of(metadata_line("cats/1.jpg", b'{"caption":"a"}', "dogs"), FEATURES)
    with pytest.raises(FormatError, match="as a build writes them"):
        annotations_of(line.replace(b":", b": "), FEATURES)
