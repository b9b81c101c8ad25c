"""One protocol for every dataset; the recipe is chosen by the dataset, and imported when it is asked for."""

import dataclasses
import pickle
import subprocess
import sys
from concurrent.futures import Future

import pytest

from dataprep import __version__
from dataprep.builder import recipe
from dataprep.builder.recipe import RECIPES, BuildJob, begin_shard, build_shard, load, recipe_named, recipe_of
from dataprep.errors import UsageError
from dataprep.sources import BUILT


@pytest.mark.parametrize("dataset", BUILT)
def test_every_dataset_has_a_recipe(dataset):
    assert recipe_of(dataset) is recipe_named(BUILT[dataset].recipe)


def test_unknown_dataset_is_refused_with_the_choices():
    with pytest.raises(UsageError, match=r"no dataset is called 'cifar'; expected one of .*coco-dup5"):
        recipe_of("cifar")


@pytest.mark.parametrize("name", RECIPES)
def test_workers_can_import_the_functions_that_a_recipe_names(name):
    for module in recipe_named(name).worker_modules:
        assert load(f"{module}:__name__") == module


def test_build_from_archives_imports_nothing_of_the_web():
    code = (
        "import sys, dataprep.builder.driver, dataprep.builder.archives\n"
        "print([name for name in sys.modules if name.startswith(('dataprep.fetched', 'dataprep.web'))])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "[]\n"


JOB = BuildJob("gs://bucket/out", "originals", "_build/0/1", recipe="archives")


def test_job_can_be_pickled_and_hashed():
    assert pickle.loads(pickle.dumps(JOB)) == JOB
    assert hash(JOB) == hash(pickle.loads(pickle.dumps(JOB)))


def test_recipe_of_the_job_builds_its_shards(monkeypatch):
    asked = []

    class Recording:
        def build_shard(self, job, index):
            asked.append(("build", job, index))

        def begin_shard(self, job, index):
            asked.append(("begin", job, index))
            return Future()

    monkeypatch.setattr(recipe, "recipe_named", {"archives": Recording()}.__getitem__)
    build_shard(JOB, 3)
    begin_shard(JOB, 4)
    assert asked == [("build", JOB, 3), ("begin", JOB, 4)]


@pytest.mark.parametrize("do_shard", [build_shard, begin_shard])
def test_worker_with_another_version_of_the_package_builds_nothing_and_names_both(do_shard):
    older = dataclasses.replace(JOB, version="0.0.9")
    expected = rf"this worker has tpu-dataprep {__version__}, the build was planned with 0\.0\.9"
    with pytest.raises(UsageError, match=expected):
        do_shard(older, 0)
