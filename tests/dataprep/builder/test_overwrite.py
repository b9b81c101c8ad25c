"""`overwrite`: what it removes, and what a build that it has overwritten can still do."""

import dataclasses

import pytest

from dataprep.builder.driver import run_build
from dataprep.builder.output import OvertakenError
from dataprep.builder.recipe import build_shard
from dataprep.dataset.manifest import MANIFEST, manifest_bytes, read_manifest
from dataprep.dataset.paths import BUILD, OVERWRITING
from dataprep.errors import BuildError, UsageError
from dataprep.storage import open_storage
from tests.support.build_here import Killed, Quiet, in_formats, interrupted, request, standing, whole
from tests.support.builds import digests


@in_formats("imagefolder")
def test_an_overwritten_build_can_no_longer_publish_anything(fmt, originals, storage_url):
    """A worker of the old build continues after the first shard of the new one, and after all of them."""
    late = interrupted(request(originals, storage_url, fmt, seed=1))

    def other(job, indexes):
        yield build_shard(job, 0)
        with pytest.raises(OvertakenError, match=r"was overtaken: plan [0-9a-f]{12} owns the output"):
            build_shard(late, 1)
        yield from (build_shard(job, index) for index in indexes[1:])

    manifest = run_build(request(originals, storage_url, fmt, overwrite=True), other, Quiet()).manifest
    expected = digests(storage_url)
    with pytest.raises(OvertakenError):
        build_shard(late, 2)
    assert digests(storage_url) == expected
    assert manifest.options["seed"] == 0
    assert not [name for name in expected if name.startswith(f"{BUILD}/")]


def test_only_files_of_the_dataset_are_removed(originals, tmp_path):
    output = tmp_path / "out"
    standing(originals, output)
    foreign = ("notes/run1/my.labels.txt", "notes/x.tfrecord-00000-of-00001", "mine.jpg")
    for name in (*foreign, "train/mine.txt"):
        open_storage(str(output)).create(name, b"precious")
    with pytest.raises(BuildError, match=r"would treat as part of the dataset, .* written: train/mine\.txt; move"):
        whole(request(originals, output, seed=5, overwrite=True))
    assert (output / "train/mine.txt").read_bytes() == b"precious"
    (output / "train/mine.txt").unlink()
    whole(request(originals, output, seed=5))
    whole(request(originals, output, "imagefolder", overwrite=True))
    assert all((output / name).read_bytes() == b"precious" for name in foreign)
    assert not list(output.glob("val/*.tar"))


def test_a_file_that_no_build_writes_is_not_removed_though_the_manifest_lists_it(originals, tmp_path):
    output = tmp_path / "out"
    standing(originals, output)
    storage = open_storage(str(output))
    storage.create("notes/t.tex", b"thesis")
    manifest = read_manifest(storage)
    listed = [*manifest.files, {"file": "notes/t.tex", "bytes": 6, "sha256": "0" * 64}]
    (output / MANIFEST).write_bytes(manifest_bytes(dataclasses.replace(manifest, files=listed)))
    with pytest.raises(UsageError, match=r"files: 'notes/t\.tex' is not a file that a build writes\. `overwrite`"):
        whole(request(originals, output, seed=5, overwrite=True))
    assert (output / "notes/t.tex").read_bytes() == b"thesis"


def test_adopted_originals_are_not_removed(originals, tmp_path):
    output = tmp_path / "out"
    manifest = standing(originals, output)
    storage = open_storage(str(output))
    storage.delete(MANIFEST)
    adopted = dataclasses.replace(manifest, options={"adopted": {"kind": "folder", "data_url": None}})
    storage.create(MANIFEST, manifest_bytes(adopted))
    before = digests(output)
    with pytest.raises(UsageError, match="your own originals"):
        whole(request(originals, output, seed=1, overwrite=True))
    assert digests(output) == before


def test_a_build_killed_before_it_claims_its_place_may_continue_with_any_options(originals, storage, monkeypatch):
    put = "dataprep.builder.output._put_pointer"
    for more in ({"seed": 1}, {"seed": 2, "overwrite": True}):
        with monkeypatch.context() as patch:
            patch.setattr(put, lambda *_: (_ for _ in ()).throw(Killed))
            with pytest.raises(Killed):
                whole(request(originals, storage.url, **more))
    assert whole(request(originals, storage.url, seed=3)).options["seed"] == 3


def test_the_marker_of_a_removal_killed_before_it_began_is_removed_by_the_next_run(originals, tmp_path):
    output = tmp_path / "out"
    standing(originals, output)
    expected = digests(output)
    open_storage(str(output)).create(OVERWRITING, b"[]")
    whole(request(originals, output))
    assert digests(output) == expected
