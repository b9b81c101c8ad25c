"""open_clip's own training takes every captioned sample of our tars, whatever they were made of."""

from __future__ import annotations

import json
import tarfile

import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.storage import open_storage
from tests.support.adoption import adopt_here, write_webdataset
from tests.support.converting import converted
from tests.support.interop import read_annotations_with_webdataset, read_with_open_clip
from tests.support.own_data import annotated, annotated_rows, build_own, picture, write_files

COUNT = 12


def shards_of(url) -> list[str]:
    return sorted(map(str, url.rglob("*.tar")))


def captions_of(url, samples=COUNT) -> list[str]:
    """The captions that open_clip takes."""
    return sorted(text for _, text in read_with_open_clip(shards_of(url), samples))


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return sorted(row["caption"] for row in annotated_rows(COUNT))


def folder(path):
    """Pictures with metadata.jsonl."""
    return build_own(annotated(path / "source", COUNT), path / "out")


def text_files(path):
    """Pictures with a text file each."""
    rows = annotated_rows(COUNT)
    pictures = {f"{number}.jpg": picture(number) for number in range(COUNT)}
    texts = {f"{number}.txt": row["caption"] for number, row in enumerate(rows)}
    write_files(path / "source", pictures | texts)
    return build_own(path / "source", path / "out", text_files=(("caption", "txt"),))


def table(path):
    """A table of paths and captions."""
    rows = annotated_rows(COUNT)
    lines = [json.dumps({"file_name": row["file_name"], "text": row["caption"]}) for row in rows]
    pictures = {row["file_name"]: picture(number) for number, row in enumerate(rows)}
    write_files(path / "source", pictures | {"train.jsonl": "\n".join(lines)})
    return build_own(path / "source", path / "out", dataset="table")


def shard_writer(path):
    """Tars that webdataset's ShardWriter has written, converted."""
    (path / "theirs").mkdir()
    rows = enumerate(annotated_rows(COUNT))
    samples = [
        {"__key__": f"{n:03}", "jpg": picture(n), "txt": row["caption"], "mask.png": picture(n, "PNG")}
        for n, row in rows
    ]
    write_webdataset(path / "theirs", samples)
    adopt_here(path / "theirs")
    return converted(path / "theirs", path / "out", how={"all_fields": True})


@pytest.mark.parametrize("make", [folder, text_files, table, shard_writer])
def test_open_clip_takes_every_sample(make, expected, tmp_path):
    make(tmp_path)
    assert captions_of(tmp_path / "out") == expected


def test_open_clip_takes_every_sample_of_a_conversion(expected, tmp_path):
    folder(tmp_path)
    converted(tmp_path / "out", tmp_path / "records", "tfrecord")
    converted(tmp_path / "records", tmp_path / "back")
    assert captions_of(tmp_path / "back") == expected


def test_members_of_other_tools_are_members_again(tmp_path):
    shard_writer(tmp_path)
    (first, *_) = shards_of(tmp_path / "out")
    with tarfile.open(first) as tar:
        assert {name.partition(".")[2] for name in tar.getnames()} == {"jpg", "json", "mask.png", "txt"}
    found = read_annotations_with_webdataset(shards_of(tmp_path / "out"))
    assert {sample["key"]: (sample["caption"], sample["mask.png"]) for sample in found} == {
        f"{n:03}": (row["caption"], picture(n, "PNG")) for n, row in enumerate(annotated_rows(COUNT))
    }
    features = read_manifest(open_storage(str(tmp_path / "out"))).features
    assert {name: (each.kind, each.member) for name, each in features.items()} == {
        "mask.png": ("bytes", "mask.png"),
        "txt": ("text", "txt"),
    }
