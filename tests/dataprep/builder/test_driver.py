"""One build from end to end: whatever happens, the same command goes on, and another dataset is never touched."""

import dataclasses
import shutil
from importlib.metadata import version

import pytest

import dataprep.builder.plan as plans
from dataprep.builder import driver
from dataprep.builder.driver import damaged_files, run_build
from dataprep.builder.finished import readable_manifest
from dataprep.builder.output import OvertakenError, open_build
from dataprep.builder.recipe import build_shard
from dataprep.dataset.manifest import MANIFEST
from dataprep.errors import AccessError, BuildError, UsageError, VerificationError
from dataprep.storage import open_storage
from dataprep.storage.gcs import GCSStorage
from dataprep.storage.local import LocalStorage
from dataprep.verification.run import verify
from tests.support.build_here import Quiet, in_formats, in_this_process, interrupted, request, standing, whole
from tests.support.builds import digests
from tests.support.finished import CHECKED
from tests.support.other_codecs import made_with_pillow
from tests.support.own_data import Notes


def _never(job, indexes):
    raise AssertionError


def _noting(built):
    """An engine that adds the indexes that it is given to a list."""

    def engine(job, indexes):
        built.extend(indexes)
        yield from in_this_process(job, indexes)

    return engine


def test_repeated_command_does_nothing(originals, storage):
    manifest = standing(originals, storage.url)
    before = digests(storage.url)
    again = run_build(request(originals, storage.url), _never, Quiet())
    assert (again.manifest, again.shards_built) == (manifest, 0)
    assert digests(storage.url) == before


def test_rerun_builds_what_is_missing(originals, storage):
    interrupted(request(originals, storage.url), 1)
    assert storage.stat(MANIFEST) is None
    built = []
    assert run_build(request(originals, storage.url), _noting(built), Quiet()).shards_built == 2
    assert built == [2, 0]  # in case another process builds from the first on


def test_a_build_says_how_many_shards_another_process_has_built_of_its_own(originals, storage):
    def engine(job, indexes):
        build_shard(job, indexes[0])  # the other process
        yield from in_this_process(job, indexes[1:])

    notes = Notes()
    run_build(request(originals, storage.url), engine, notes)
    assert "another process built 1 shard meanwhile" in notes.lines


def test_where_nothing_may_be_deleted_the_dataset_is_complete(originals, storage_url, monkeypatch):
    """As in a bucket with a retention policy."""

    def refused(self, *_):
        raise AccessError("permission storage.objects.delete is missing")

    for kind in (LocalStorage, GCSStorage):
        for method in ("delete_exactly", "delete_tree"):
            monkeypatch.setattr(kind, method, refused)
    notes, asked = Notes(), request(originals, storage_url)
    for assembled in (True, False):
        found = run_build(asked, in_this_process, notes)
        assert found.assembled is assembled
        assert "files of the build stay in _build/: permission storage.objects.delete is missing" in notes.lines.pop()
    assert verify(str(storage_url), deep=True, workers=0, progress=Quiet()).samples


def test_other_dataset_is_refused_and_left_unchanged(originals, tmp_path):
    standing(originals, tmp_path / "out")
    before = digests(tmp_path / "out")
    expected = r"another dataset exists there already \(imagenet, .*: `format` is webdataset there, tfrecord here"
    with pytest.raises(UsageError, match=expected):
        whole(request(originals, tmp_path / "out", "tfrecord"))
    assert digests(tmp_path / "out") == before


def test_more_shards_than_a_manifest_can_hold_are_refused_before_any_is_built(originals, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "MAX_SHARDS", 2)
    with pytest.raises(UsageError, match="the plan has 3 shards, a dataset can have 2; ask for larger shards"):
        whole(request(originals, tmp_path / "out"))
    assert not list(tmp_path.rglob("plan.json"))


def test_place_with_other_files_is_refused(originals, storage):
    storage.create("notes.txt", b"precious")
    with pytest.raises(UsageError, match=r"holds no dataset of ours \(found notes\.txt\)"):
        whole(request(originals, storage.url))


@pytest.mark.parametrize(("source", "output"), [("out/images", "out"), ("originals", "originals/out")])
@pytest.mark.parametrize("overwrite", [False, True])
def test_originals_and_output_inside_one_another_are_refused(originals, tmp_path, source, output, overwrite):
    """What is built inside the originals would be listed as one by the next command that reads the folder."""
    if output == "out":
        standing(originals, tmp_path / "out")
    shutil.copytree(originals["imagenet"], tmp_path / source)
    before = digests(tmp_path)
    asked = request({"imagenet": tmp_path / source}, tmp_path / output, seed=5, overwrite=overwrite)
    with pytest.raises(UsageError, match="are inside one another"):
        whole(asked)
    assert digests(tmp_path) == before


def test_a_worker_with_other_codecs_refuses_naming_both_versions(originals, tmp_path, monkeypatch):
    def engine(job, indexes):
        here = plans.codec_versions()
        monkeypatch.setattr(plans, "codec_versions", lambda *more: here | {"pillow": "0.0.1"})
        open_build.cache_clear()  # a worker is a process of its own
        with pytest.raises(
            UsageError, match=f"this worker has pillow 0.0.1, but the plan was made with .*{here['pillow']}"
        ):
            build_shard(job, 0)
        monkeypatch.undo()
        yield from in_this_process(job, indexes)

    run_build(request(originals, tmp_path / "out"), engine, Quiet())


def test_file_missing_because_of_an_overwriting_build_is_reported_as_overtaken(originals, tmp_path):
    def engine(job, indexes):
        interrupted(request(originals, tmp_path / "out", seed=1, overwrite=True))
        raise FileNotFoundError("a spool file")
        yield

    with pytest.raises(OvertakenError, match="was overtaken"):
        run_build(request(originals, tmp_path / "out"), engine, Quiet())


def test_run_that_only_writes_the_manifest_says_so(originals, tmp_path):
    """Images were rejected in the first run; the second one, which allows that, has no shard to build."""
    strict = dataclasses.replace(request(originals, tmp_path / "out", splits=("train",)), max_reject_ratio=0.0)
    with pytest.raises(BuildError, match="`max_reject_ratio`"):
        whole(strict)
    for assembled in (True, False):
        found = run_build(request(originals, tmp_path / "out", splits=("train",)), _never, Quiet())
        assert (found.shards_built, found.assembled) == (0, assembled)


@pytest.mark.parametrize("most", [None, 0])
def test_workers_are_sent_a_plan_that_is_not_too_large(originals, tmp_path, monkeypatch, most):
    if most is not None:
        monkeypatch.setattr(driver, "MAX_SENT_POINTER_BYTES", most)
    pointers = []

    def engine(job, indexes):
        pointers.append((job.pointer, (tmp_path / "out/_build/plan.json").read_bytes()))
        yield from in_this_process(job, indexes)

    run_build(request(originals, tmp_path / "out"), engine, Quiet())
    [(sent, stored)] = pointers
    assert sent == (stored if most is None else None)


def test_a_worker_that_was_sent_an_overtaken_plan_builds_nothing(originals, storage_url):
    other = request(originals, storage_url, seed=1, overwrite=True)

    def there():
        """Digests without objects that a bucket's storage has copied to their names and removes a moment later."""
        return {name: each for name, each in digests(storage_url).items() if "/tmp/" not in name}

    def engine(job, indexes):
        interrupted(other)
        before = there()
        open_build.cache_clear()  # a worker is a process of its own
        with pytest.raises(OvertakenError, match="was overtaken"):
            build_shard(job, 1)
        assert there() == before
        yield build_shard(job, 1)

    with pytest.raises(OvertakenError, match="was overtaken"):
        run_build(request(originals, storage_url), engine, Quiet())
    whole(request(originals, storage_url, seed=1))


class Meanwhile(Quiet):
    """Does something once, while originals are listed: after the look at the output."""

    def __init__(self, act):
        self._acts = [act]

    def enumerating(self, split):
        if self._acts:
            self._acts.pop()()


def test_a_build_of_the_same_plan_may_finish_while_another_lists_the_originals(originals, storage):
    asked = request(originals, storage.url)
    found = run_build(asked, _never, Meanwhile(lambda: whole(asked)))
    assert (found.shards_built, found.assembled) == (0, False)
    assert not list(storage.list("_build/"))
    assert whole(asked) == found.manifest


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_dataset_that_another_build_finishes_meanwhile_is_left_unchanged(originals, storage, overwrite):
    others = request(originals, storage.url, seed=1)
    before = []

    def finish():
        whole(others)
        before.append(digests(storage.url))

    advice = "run this again to remove it" if overwrite else "`overwrite` it"
    with pytest.raises(UsageError, match=f"another dataset exists there already.*{advice}$"):
        run_build(request(originals, storage.url, overwrite=overwrite), _never, Meanwhile(finish))
    assert digests(storage.url) == before[0]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_build_that_begins_while_another_lists_the_originals_keeps_the_place(originals, storage_url, seed):
    first = request(originals, storage_url)
    built = []
    engine = _noting(built)
    second = request(originals, storage_url, seed=seed)
    if seed:
        with pytest.raises(UsageError, match="a build with another plan is under way there"):
            run_build(second, engine, Meanwhile(lambda: interrupted(first, 1)))
        assert whole(first).options["seed"] == 0
    else:
        assert run_build(second, engine, Meanwhile(lambda: interrupted(first, 1))).shards_built == 2
    assert built == ([] if seed else [2, 0])


@pytest.mark.parametrize("name", CHECKED)
def test_no_file_of_a_whole_dataset_is_damaged(finished, name):
    storage = open_storage(str(finished(name)))
    assert list(damaged_files(storage, readable_manifest(storage))) == []


def a_file(storage, fmt):
    """The name of a shard, or of an image of an image folder."""
    return next(info.name for info in storage.list("val" if fmt != "tfrecord" else "") if info.num_bytes > 9_000)


@in_formats("imagefolder", "damage", webdataset=["deleted"], tfrecord=["longer"], imagefolder=["longer"])
def test_a_build_that_finds_a_damaged_dataset_names_the_file_and_overwrite_mends_it(
    originals, storage_url, fmt, damage
):
    standing(originals, storage_url, fmt)
    before, storage = digests(storage_url), open_storage(storage_url)
    name = a_file(storage, fmt)
    data = storage.read(name)
    storage.delete(name)
    if damage == "longer":
        storage.create(name, data + b"x")
    what = "is missing" if damage == "deleted" else f"has {len(data) + 1:,} bytes, expected {len(data):,}"
    with pytest.raises(VerificationError) as error:
        whole(request(originals, storage_url, fmt))
    assert f"{storage_url}: the dataset is damaged, 1 file of it: {name} {what}. " in str(error.value)
    assert "`overwrite`" in str(error.value) and f"replicate the copy to {storage_url}" in str(error.value)
    whole(request(originals, storage_url, fmt, overwrite=True))
    assert digests(storage_url) == before


@in_formats("webdataset", webdataset=[], imagefolder=[])
def test_a_damaged_dataset_of_other_codecs_is_named_with_both_versions(originals, storage_url, fmt):
    with made_with_pillow("99.0.0"):
        whole(request(originals, storage_url, fmt))
    storage = open_storage(storage_url)
    with pytest.raises(UsageError) as refused:
        whole(request(originals, storage_url, fmt))
    versions = f"made with pillow 99.0.0 (this is {version('pillow')})"
    assert f"{storage_url}: the dataset is there already, {versions}; choose another `output`" in str(refused.value)
    name = a_file(storage, fmt)
    storage.delete(name)
    with pytest.raises(VerificationError) as error:
        whole(request(originals, storage_url, fmt))
    assert f"the dataset is damaged, 1 file of it: {name} is missing. It was {versions}" in str(error.value)
    assert "install those versions to repair it" in str(error.value) and "`overwrite`" in str(error.value)
    whole(request(originals, storage_url, fmt, overwrite=True))
    assert readable_manifest(storage).codecs["pillow"] == version("pillow")


def test_a_missing_index_is_named_before_images_that_only_it_lists(originals, tmp_path):
    standing(originals, tmp_path / "out", "imagefolder")
    (tmp_path / "out/index/val.parquet").unlink()
    with pytest.raises(VerificationError, match=r"1 file of it: index/val\.parquet is missing"):
        whole(request(originals, tmp_path / "out", "imagefolder"))


def test_other_files_beside_the_images_are_no_damage(originals, tmp_path):
    standing(originals, tmp_path / "out", "imagefolder")
    (tmp_path / "out/val/notes.txt").write_text("mine")
    whole(request(originals, tmp_path / "out", "imagefolder"))


def test_more_than_three_damaged_files_are_counted(originals, tmp_path):
    standing(originals, tmp_path / "out", "imagefolder")
    shutil.rmtree(tmp_path / "out/val")
    with pytest.raises(VerificationError, match=r"the dataset is damaged, \d+ files of it: .*; .*; .* and \d+ more\. "):
        whole(request(originals, tmp_path / "out", "imagefolder"))


def test_files_that_a_retry_is_changing_are_not_compared(originals, tmp_path):
    standing(originals, tmp_path / "out")
    next((tmp_path / "out/val").glob("*.tar")).unlink()
    open_storage(str(tmp_path / "out")).create("_change/plan.json", b"{}")
    whole(request(originals, tmp_path / "out"))
