"""One protocol for every dataset; the recipe is chosen by the dataset, and imported when it is asked for."""

import subprocess
import sys

import pytest

from dataprep.builder.recipe import RECIPES, Recipe, load, recipe_named, recipe_of
from dataprep.errors import UsageError
from dataprep.sources import BUILT


@pytest.mark.parametrize("dataset", BUILT)
def test_every_dataset_has_a_recipe(dataset):
    assert recipe_of(dataset) is recipe_named(BUILT[dataset].recipe)


def test_unknown_dataset_is_refused_with_the_choices():
    with pytest.raises(UsageError, match=r"no dataset is called 'cifar'; expected one of .*coco-dup5"):
        recipe_of("cifar")


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_has_every_member_of_the_protocol(name):
    recipe = recipe_named(name)
    assert {each for each in dir(Recipe) if not each.startswith("_")} <= set(dir(recipe))
    assert Recipe.__annotations__.keys() <= set(dir(recipe))
    assert callable(load(recipe.shard_check))


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
