"""`remove` and `append`, killed at commit boundaries: the old revision or the new one, and a rerun finishes."""

import shutil
from functools import partial
from itertools import product

import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.storage import open_storage
from loaders import open_loader
from tests.support import stopping
from tests.support.builds import digests, succeeds
from tests.support.finished import details, verify_here
from tests.support.own_data import picture, write_files
from tests.support.stopping import STOPPED, Stops

LEFT_OVER = {"leftover", "extra", "card"}
"""What `verify` may find of a change that was killed: its own files, and those that nothing names."""
COUNTS = {"remove": (12, 10), "append": (12, 16)}
FORMATS = ("webdataset", "tfrecord", "imagefolder")
SAMPLE = (("remove", "imagefolder"), ("append", "tfrecord"))
"""What `make test` has of them."""


@pytest.fixture
def pets(tmp_path):
    """Twelve pictures with captions, in two classes; later four more."""
    return _write(tmp_path / "pets", range(12))


def _write(root, numbers):
    rows = [f'{{"file_name": "{_file(number)}", "caption": "picture {number}"}}\n' for number in numbers]
    files = {f"train/{_file(number)}": picture(number) for number in numbers}
    return write_files(root, files | {"train/metadata.jsonl": "".join(rows)})


def _file(number):
    return f"{('cats', 'dogs')[number % 2]}/{number}.jpg"


def _words(kind, fmt, pets, url, tmp_path):
    build = ["build", "folder", "--source", pets, "--output", url, "--format", fmt, "--num-shards", 3, "--name", "pets"]
    succeeds(*build, "--workers", 1)
    if kind == "append":
        _write(pets, range(16))
        return [*build, "--append", "--workers", 1]
    (tmp_path / "keys").write_text("cats/4\ndogs/7\n")
    return ["remove", url, "--keys", tmp_path / "keys"]


def _is_whole(kind, url):
    """Check that readers find the old revision or the new one, complete."""
    manifest = read_manifest(open_storage(url))
    samples = sum(split.samples for split in manifest.splits)
    assert samples == COUNTS[kind][manifest.revision - 1]
    report = verify_here(url)
    metadata = {"digest", "size", "metadata", "index", "count"} if manifest.revision == 1 else set()
    assert set(report.counts) <= LEFT_OVER | metadata, details(report)
    named = [each for each in report.findings if each.kind in ("missing", "record", "manifest", "format")]
    assert not named, details(report)
    fields = () if manifest.format == "imagefolder" else ("caption",)  # metadata.jsonl is replaced in its place
    with open_loader(url, batch_size=4, image_size=16, shuffle=False, threads=1, fields=fields) as loader:
        keys = [key for batch in loader for key, valid in zip(batch.keys, batch.mask, strict=True) if valid]
    assert len(set(keys)) == samples


def _same(url):
    """Digests of all files but those that have the time of a removal, or its digest."""
    found = digests(url)
    return {name: found[name] for name in found if name != "dataset.json" and not name.startswith("removed/")}


def _stop_often(kind, words, url, reset, *, every, requests):
    """Stop a change before and after every n-th boundary, look, and run it again. Returns the stops."""
    stops, expected = 0, None
    for when in ("after", "before"):
        boundary = 1
        while True:
            reset()
            run = stopping.start(words, Stops((boundary,), when, requests=requests))
            while run.wait(60) != "ended":
                pass
            assert run.ended().code in (0, STOPPED), run.ended().stderr[-2000:]
            _is_whole(kind, url)
            if run.ended().code == STOPPED:
                stops += 1
                again = stopping.run(words)
                assert again.code == 0, again.stderr[-2000:]
            report = verify_here(url, deep=True)
            assert set(report.counts) <= {"card"}, f"stopped {when} boundary {boundary}: {details(report)}"
            assert read_manifest(open_storage(url)).revision == 2
            expected = expected or _same(url)
            assert _same(url) == expected, f"stopped {when} boundary {boundary}"
            if run.ended().code == 0:
                break
            boundary += every
    return stops


@pytest.mark.parametrize(
    ("kind", "fmt"),
    [pytest.param(*pair, marks=[pytest.mark.long] * (pair not in SAMPLE)) for pair in product(COUNTS, FORMATS)],
)
def test_a_change_that_is_killed_on_a_disk_is_finished_by_a_rerun(pets, tmp_path, kind, fmt):
    url, first = tmp_path / "out", tmp_path / "first"
    words = _words(kind, fmt, pets, url, tmp_path)
    url.rename(first)
    every = {"remove": 13, "append": 17}[kind]
    copy = partial(_copied, first, url)
    assert _stop_often(kind, words, str(url), copy, every=every, requests=False) >= 4


def _copied(first, url):
    shutil.rmtree(url, ignore_errors=True)
    shutil.copytree(first, url)


@pytest.mark.parametrize("kind", ["remove", "append"])
def test_a_change_that_is_killed_in_a_bucket_is_finished_by_a_rerun(pets, tmp_path, bucket_url, kind):
    words = _words(kind, "tfrecord", pets, bucket_url, tmp_path)
    storage = open_storage(bucket_url)
    first = {info.name: storage.read(info.name) for info in storage.list()}

    def reset():
        for info in list(storage.list()):
            storage.delete(info.name)
        for name, data in first.items():
            storage.create(name, data)

    assert _stop_often(kind, words, bucket_url, reset, every=29, requests=True) >= 4
