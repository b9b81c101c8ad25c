"""`dataprep map` as a command and as a function: engines, dry run, faults, and who sees columns afterwards."""

import hashlib
import json
import random
import shutil
from importlib.metadata import version

import pytest

import dataprep
from dataprep.column_functions import find_function
from dataprep.commands.map import command
from dataprep.dataset.column_files import read_column, read_values
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import BuildError, UsageError
from dataprep.storage import open_storage
from tests.support import mapped
from tests.support.builds import digests, invoked, printed, refuses
from tests.support.finished import build_here
from tests.support.map_kills import FUNCTION, column_digests, kill_maps


@pytest.fixture(scope="module")
def made(originals, tmp_path_factory):
    """A dataset in three shards, for copies."""
    root = tmp_path_factory.mktemp("map") / "out"
    build_here("coco-dup5", originals["coco"], root, "webdataset")
    return root


@pytest.fixture(scope="module")
def with_column(made, tmp_path_factory):
    """The same with the column `size`, made by two processes."""
    root = shutil.copytree(made, tmp_path_factory.mktemp("map") / "out")
    dataprep.map(root, {"size": mapped.sizes}, workers=2)
    return root


@pytest.fixture
def root(made, tmp_path):
    return shutil.copytree(made, tmp_path / "out")


def test_any_number_of_workers_and_parts_make_the_same_bytes(root, with_column):
    expected = column_digests(with_column)
    assert len(expected) == 4
    found = dataprep.map(root, {"size": FUNCTION}, workers=1)
    assert column_digests(root) == expected
    assert (found.types, list(found.made)) == ({"size": "int64"}, ["size"])
    shutil.rmtree(root / "columns")
    dataprep.map(root, {"size": FUNCTION}, workers=1, part="2/3")
    assert column_digests(root) == expected


def test_a_dry_run_says_what_would_be_made_and_writes_nothing(root):
    before = digests(root)
    shown = printed(command, root, "--column", f"size={FUNCTION}", "--dry-run")
    samples = dataprep.open(str(root)).splits["train"].samples
    assert shown == f"size: would be computed for {samples} samples (dry run: nothing was written)\n"
    assert digests(root) == before


def test_several_columns_are_said_in_json(root):
    words = [root, "--column", f"size={FUNCTION}", "--column", "name=tests.support.mapped:keys", "--workers", "1"]
    document = json.loads(invoked(command, *words, "--json").stdout)
    samples = dataprep.open(str(root)).splits["train"].samples
    assert document["made"] == {"size": samples, "name": samples}
    assert document["types"] == {"size": "int64", "name": "text"}
    again = json.loads(invoked(command, *words, "--json").stdout)
    assert again["made"] == {"size": 0, "name": 0}


def test_a_function_that_kills_its_worker_is_set_aside(root):
    with pytest.raises(BuildError, match="killed its worker 3 times"):
        dataprep.map(root, {"x": mapped.dying}, workers=1)


def test_a_function_that_hangs_is_ended(root):
    with pytest.raises(BuildError, match="hung"):
        dataprep.map(root, {"x": mapped.hanging}, workers=3, stall_minutes=0.02)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--column", "x=captions.parquet"], "a table needs a column with the keys; name it with --on"),
        (["--column", f"x={FUNCTION}", "--on", "key"], "--column x is not a table such as captions.parquet"),
        (
            ["--column", "x=phsh"],
            "such as captions.parquet; did you mean phash? There are phash, sharpness, ",
        ),
        (["--column", "x=no_such_module:encode"], "no module no_such_module is installed or in"),
        (["--column", f"label={FUNCTION}"], "the name 'label' is taken"),
        (["--column", "x=none.csv", "--on", "key"], "--column: no table none.csv"),
        (["--column", f"x={FUNCTION}", "--part", "1/2", "--overwrite"], "--part with --overwrite"),
        ([], "Missing option '--column'"),
    ],
)
def test_wrong_use_is_refused_with_what_to_do(root, words, message):
    assert message in refuses("map", root, *words).stderr


def test_each_process_has_a_device_of_its_own(root, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7,9")
    dataprep.map(root, {"device": mapped.device}, devices=2)
    storage = open_storage(str(root))
    column = read_column(storage, read_manifest(storage), "device")
    found = [read_values(storage, column.type, shard)[0] for shard in column.column.splits["train"]]
    assert {*found} == {"5", "7"}


def test_functions_of_pictures_are_known_by_name(root):
    document = json.loads(invoked(command, root, "--column", "h=phash", "--column", "s=sharpness", "--json").stdout)
    assert document["types"] == {"h": "uint64", "s": "float32"}


def test_a_model_makes_a_column_and_other_weights_another(root, tmp_path, monkeypatch):
    import timm
    import torch

    torch.manual_seed(0)
    from safetensors.torch import save_file

    file = tmp_path / "vit.safetensors"
    monkeypatch.chdir(tmp_path)
    given = {"embedding": "timm:test_vit@vit.safetensors"}
    save_file(timm.create_model("test_vit").state_dict(), file)
    dataprep.map(root, given, image_size=32, workers=1)
    assert dataprep.map(root, given, image_size=32).made == {"embedding": 0}
    storage = open_storage(str(root))
    column = read_column(storage, read_manifest(storage), "embedding").column
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert (column.function, str(column.type)) == ("timm:test_vit", "float16 (64)")
    assert column.function_version == f"timm {version('timm')}, weights {digest}, 32 pixels"
    with pytest.raises(UsageError, match=r"weights [0-9a-f]{64}, 32 pixels', this is .*, 64 pixels'"):
        dataprep.map(root, given, image_size=64)
    job = find_function(given["embedding"])
    save_file(timm.create_model("test_vit").state_dict(), file)
    monkeypatch.chdir(root)
    with pytest.raises(UsageError, match="has other weights, or another version of the library"):
        job.load()


def test_a_view_is_refused_with_its_dataset(root):
    dataprep.select(root, name="half", sample=0.5)
    with pytest.raises(UsageError, match="a column belongs to a dataset"):
        dataprep.map(f"{root}@half", {"size": FUNCTION})


def test_conditions_of_views_see_columns(with_column, tmp_path):
    root = shutil.copytree(with_column, tmp_path / "out")
    found = dataprep.select(root, name="large", where="size >= image_bytes and size > 0")
    assert found.samples["train"] == dataprep.open(str(root)).splits["train"].samples
    assert dataprep.select(root, name="none", where="size < image_bytes").samples == {"train": 0}
    with pytest.raises(UsageError, match="no column 'siez'; did you mean size"):
        dataprep.select(root, name="x", where="siez > 1")


def test_verify_reads_columns_and_names_a_damaged_one(with_column, tmp_path):
    root = shutil.copytree(with_column, tmp_path / "out")
    assert dataprep.verify(root, workers=1).ok
    first, second, _ = sorted((root / "columns/size").glob("*.arrow"))
    first.unlink()
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    assert dataprep.verify(root, workers=1).counts == {"column": 2}


def test_inspect_lists_columns(with_column):
    assert dataprep.inspect(with_column).columns == {"size": "int64"}


def test_a_killed_map_is_continued_to_the_same_bytes(root, with_column):
    kill_maps(random.Random(0), root, column_digests(with_column), kills=1, runs=[("--workers", 2)])
