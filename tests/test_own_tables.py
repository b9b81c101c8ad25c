"""A user's own tables from end to end: interrupted, changed and overwritten; read back by other libraries."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from dataprep.builder.driver import run_build
from dataprep.builder.images import ImagePolicy
from dataprep.builder.recipe import build_shard
from dataprep.dataset.paths import UNPACKED
from dataprep.errors import SourceError, UsageError
from dataprep.storage import open_storage
from tests.support.build_here import Killed, Quiet
from tests.support.builds import dataprep, digests
from tests.support.hub_server import TOKEN, hub_server
from tests.support.interop import (
    read_annotations_with_hf_datasets,
    read_annotations_with_webdataset,
    read_with_hf_datasets,
)
from tests.support.own_data import build_own, picture, request, write_files
from tests.support.tables import BREEDS, hub, hub_rows, write_hub, write_rows


def asked(source, output, **own):
    return request(source, output, dataset="table", **own)


def built(source, output, **own):
    return build_own(source, output, dataset="table", **own)


def unpacked(output):
    return sorted(info.name for info in open_storage(str(output)).list("_build/") if info.name.startswith(UNPACKED))


def in_this_process(job, indexes):
    return (build_shard(job, index) for index in indexes)


def kill_after(shards):
    """An engine that is killed when it has built some shards."""

    def engine(job, indexes):
        for index in indexes[:shards]:
            yield build_shard(job, index)
        raise Killed

    return engine


def interrupted(source, output, shards=1, **own):
    with pytest.raises(Killed):
        run_build(asked(source, output, **own), kill_after(shards), Quiet())


def test_an_interrupted_build_goes_on_with_what_was_unpacked(tmp_path, storage_url):
    source = hub(tmp_path / "hub")
    expected = built(source, tmp_path / "reference")
    interrupted(source, storage_url)
    names = unpacked(storage_url)
    assert len(names) == 3
    for name in names[:1]:
        open_storage(storage_url).delete(name)  # a rerun unpacks what is gone
    assert built(source, storage_url) == expected
    assert digests(storage_url) == digests(tmp_path / "reference")
    assert not list(open_storage(storage_url).list("_build/"))


def test_images_that_change_before_a_build_goes_on_are_unpacked_again(tmp_path):
    source, output = hub(tmp_path / "hub"), open_storage(str(tmp_path / "out"))
    unchecked = {"options": {"images": ImagePolicy(check="none")}}
    expected = built(source, tmp_path / "reference", **unchecked)
    interrupted(source, tmp_path / "out", shards=0, **unchecked)
    for name in unpacked(tmp_path / "out"):
        data = bytearray(output.read(name))
        data[100] ^= 1
        output.delete(name)
        output.create(name, bytes(data))
    match = r"parquet: the image of row 1 \(\d+\) had CRC32C \w{8} when it was unpacked to .*unpacked-.* run the same"
    for _ in range(3):
        with pytest.raises(SourceError, match=match):
            built(source, tmp_path / "out", **unchecked)
        assert len(unpacked(tmp_path / "out")) == 2
    assert built(source, tmp_path / "out", **unchecked) == expected
    assert digests(tmp_path / "out") == digests(tmp_path / "reference")


def test_a_table_that_has_changed_is_another_plan(tmp_path):
    source = hub(tmp_path / "hub")
    interrupted(source, tmp_path / "out")
    rows = hub_rows(3, 50)
    rows[0]["caption"] = "cat 50"  # of the same size
    write_hub(source / "data/validation-00000-of-00001.parquet", rows)
    with pytest.raises(
        UsageError, match=r"a build with another plan is under way there: .* (bytes there, .* here|another SHA-256)"
    ):
        built(source, tmp_path / "out")


def test_overwriting_uses_what_is_unpacked_and_leaves_nothing(tmp_path):
    source = hub(tmp_path / "hub")
    built(source, tmp_path / "out")
    again = replace(asked(source, tmp_path / "out", options={"seed": 1}), overwrite=True)
    with pytest.raises(Killed):
        run_build(again, kill_after(1), Quiet())
    kept = unpacked(tmp_path / "out")
    assert len(kept) == 3
    last = replace(again, options=replace(again.options, seed=2))
    with pytest.raises(Killed):
        run_build(last, kill_after(1), Quiet())
    assert unpacked(tmp_path / "out") == kept
    manifest = run_build(last, in_this_process, Quiet()).manifest
    assert manifest.options["seed"] == 2
    assert not list(open_storage(str(tmp_path / "out")).list("_build/"))


# Other libraries


def test_datasets_reads_back_what_datasets_wrote(tmp_path):
    import datasets

    rows = [
        {
            **row,
            "score": number / 3,
            "tags": [f"t{tag}" for tag in range(number % 3)],
            "boxes": [[1.5, 2.0, 3.0, 4.0]] * number,
        }
        for number, row in enumerate(hub_rows(7))
    ]
    columns = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=list(BREEDS)),
        "caption": datasets.Value("string"),
        "score": datasets.Value("float64"),
        "tags": datasets.List(datasets.Value("string")),
        "boxes": datasets.List(datasets.List(datasets.Value("float32"), length=4)),
    }
    (tmp_path / "hub/data").mkdir(parents=True)
    written = datasets.Dataset.from_list(rows, features=datasets.Features(columns))
    written.to_parquet(tmp_path / "hub/data/train-00000-of-00001.parquet")
    built(tmp_path / "hub", tmp_path / "shards")
    built(tmp_path / "hub", tmp_path / "folder", fmt="imagefolder")
    shards = [str(path) for path in sorted((tmp_path / "shards/train").glob("*.tar"))]
    read = read_annotations_with_hf_datasets("webdataset", shards)
    found = {row["__key__"]: row["json"] | {"caption": row["txt"]} for row in read}
    assert found.keys() == {str(number) for number in range(7)}
    values = {str(n): {name: row[name] for name in ("caption", "score", "tags", "boxes")} for n, row in enumerate(rows)}
    assert {key: {name: row[name] for name in values[key]} for key, row in found.items()} == values
    assert {key: row["class_name"] for key, row in found.items()} == {str(n): BREEDS[n % 3] for n in range(7)}
    images = {key: image for key, _, image in read_with_hf_datasets(shards)}
    assert images == {str(n): sha256(row["image"]["bytes"]).hexdigest() for n, row in enumerate(rows)}
    folder = read_annotations_with_hf_datasets("imagefolder", str(tmp_path / "folder/train"))
    assert {row["path"].rpartition("/")[2]: row["caption"] for row in folder} == {
        f"{number}.jpg": row["caption"] for number, row in enumerate(rows)
    }


# What people ask for: one command for pictures with captions, boxes or a data frame of annotations beside them


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("captions.csv", [{"caption": 'a dog, "running"'}, {"caption": "a cat"}]),
        ("frame.parquet", [{"weight": 1.5, "age": 3}, {"weight": 2.0, "age": 4}]),
        ("boxes.jsonl", [{"objects": [{"bbox": [1.0, 2.0, 3.5, 4.0], "category": 2}] * 2}, {"objects": []}]),
    ],
)
def test_one_command_answers(tmp_path, table, values):
    rows = [{"file_name": f"base_folder/img{n}.png", **row} for n, row in enumerate(values, 1)]
    source = write_files(tmp_path / "mine", {row["file_name"]: picture(n, "PNG") for n, row in enumerate(rows)})
    write_rows(source / table, rows)
    run = dataprep("build", "table", "--source", source, "--output", tmp_path / "out", "--format", "webdataset")
    assert run.returncode == 0, run.stderr
    samples = read_annotations_with_webdataset([str(shard) for shard in (tmp_path / "out/train").glob("*.tar")])
    found = {sample["key"]: sample for sample in samples}
    assert found.keys() == {"base_folder/img1", "base_folder/img2"}
    for number, row in enumerate(values, 1):
        for name, value in row.items():
            stored = value
            if name == "objects":
                stored = {inner: [item[inner] for item in value] for inner in ("bbox", "category")}
            assert found[f"base_folder/img{number}"][name] == stored


# The Hub


@pytest.fixture
def hub_of_dogs(tmp_path):
    with hub_server() as server:
        server.add("some/dogs", hub(tmp_path / "dogs"), card={"license": "cc0-1.0"}, is_private=True)
        server.add("some/cats", write_files(tmp_path / "cats", {"a/1.jpg": picture(1), "b/1.jpg": picture(2)}))
        yield server


def run_on(server, dataset, *more):
    words = ("build", dataset, "--format", "webdataset", "--json", *more)
    return dataprep(*words, **server.environment, HF_TOKEN=TOKEN)


def test_a_private_table_of_the_hub(tmp_path, hub_of_dogs):
    commit = hub_of_dogs.repositories["some/dogs"].branches["main"]
    run = run_on(hub_of_dogs, "table", "--source", "hf://datasets/some/dogs", "--output", tmp_path / "out")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["name"], found["licence"]) == ("dogs", "cc0-1.0")
    assert found["origin"] == f"https://huggingface.co/datasets/some/dogs/tree/{commit}"
    assert TOKEN not in run.stdout + run.stderr + (tmp_path / "out/dataset.json").read_text()
    more = {"licence": "cc0-1.0", "origin": found["origin"], "options": {"num_shards": None}}
    again = request(tmp_path / "dogs", tmp_path / "local", dataset="table", **more)
    own = replace(again.options.own, name="dogs")
    run_build(replace(again, options=replace(again.options, own=own)), in_this_process, Quiet())
    assert digests(tmp_path / "out") == digests(tmp_path / "local")


def test_a_folder_of_the_hub_and_one_that_is_not_there(tmp_path, hub_of_dogs):
    run = run_on(hub_of_dogs, "folder", "--source", "hf://datasets/some/cats@main", "--output", tmp_path / "out")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["classes"] == ["a", "b"]
    other = run_on(hub_of_dogs, "imagenet", "--source", "hf://datasets/some/dogs", "--output", tmp_path / "no")
    assert other.returncode == 2
    assert "train-00000-of-00002.parquet row 1: image.path is '0.jpg'; expected the names of the Hub's" in other.stderr
    absent = run_on(hub_of_dogs, "table", "--source", "hf://datasets/some/birds", "--output", tmp_path / "no")
    assert absent.returncode == 2
    assert len(absent.stderr.splitlines()) == 1
    assert "no dataset some/birds is on the Hub, or it is private" in absent.stderr
