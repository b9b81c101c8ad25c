"""A user's own tables from end to end: interrupted, changed and overwritten; read back by other libraries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataprep.build.driver import run_build
from dataprep.build.job import build_shard
from dataprep.dataset.paths import UNPACKED
from dataprep.errors import UsageError
from dataprep.storage import open_storage
from tests.support.build_here import Killed, Quiet
from tests.support.builds import digests
from tests.support.own_data import build_own, request
from tests.support.tables import hub, hub_rows, write_hub


def asked(source, output, **own):
    return request(source, output, dataset="table", **own)


def built(source, output, **own):
    return build_own(source, output, dataset="table", **own)


def unpacked(output):
    return sorted(info.name for info in open_storage(str(output)).list("_build/") if info.name.startswith(UNPACKED))


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


def test_a_table_that_has_changed_is_another_plan(tmp_path):
    source = hub(tmp_path / "hub")
    interrupted(source, tmp_path / "out")
    rows = hub_rows(3, 50)
    rows[0]["caption"] = "cat 50"  # of the same size
    write_hub(source / "data/validation-00000-of-00001.parquet", rows)
    with pytest.raises(UsageError, match=r"a build with another plan is under way there: .*sha256"):
        built(source, tmp_path / "out")


def test_overwriting_uses_what_is_unpacked_and_leaves_nothing(tmp_path, storage_url):
    source = hub(tmp_path / "hub")
    built(source, storage_url)
    again = replace(asked(source, storage_url, options={"seed": 1}), overwrite=True)
    with pytest.raises(Killed):
        run_build(again, kill_after(1), Quiet())
    kept = unpacked(storage_url)
    assert len(kept) == 3
    last = replace(again, options=replace(again.options, seed=2))
    with pytest.raises(Killed):
        run_build(last, kill_after(1), Quiet())
    assert unpacked(storage_url) == kept
    manifest = run_build(last, lambda job, indexes: (build_shard(job, index) for index in indexes), Quiet()).manifest
    assert manifest.options["seed"] == 2
    assert not list(open_storage(storage_url).list("_build/"))
