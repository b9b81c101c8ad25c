"""Recipes for parts of a build on schedulers: each fits the scheduler's published schema, and its command is right.

The schemas are the models of kubeflow-trainer-api, which holds those of Kubernetes and JobSet, and Google's messages of
Batch. JSON that a model does not know is left out when the model is written again; Google's parser refuses it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
import yaml
from google.cloud import batch_v1
from google.protobuf import json_format
from kubeflow_trainer_api.models.io_k8s_api_batch_v1_job import IoK8sApiBatchV1Job
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

from dataprep.commands.build import command as build_command
from dataprep.commands.tpu_jobs import run_command
from pipelines.parts import Part, part_of
from tests.support.markdown import ROOT, blocks, commands, words_of

RECIPES = ROOT / "docs/recipes"
JOB, JOB_SET, BATCH = "indexed-job.yaml", "jobset.yaml", "batch.json"
NAMED_FREELY = {"requests"}
"""Maps whose keys a schema leaves to the user."""

Place = tuple[str | int, ...]
"""Keys and positions that lead to a value of a recipe."""


def fits_kubernetes(document: Any) -> bool:
    model = IoK8sApiBatchV1Job if document.get("kind") == "Job" else JobsetV1alpha2JobSet
    try:
        written: Any = model.from_dict(document).to_dict()
    except ValueError:
        return False
    return written == document


def fits_batch(document: Any) -> bool:
    try:
        json_format.ParseDict(document, batch_v1.Job.pb(batch_v1.Job()))
    except json_format.ParseError:
        return False
    return True


FITS: dict[str, Callable[[Any], bool]] = {JOB: fits_kubernetes, JOB_SET: fits_kubernetes, BATCH: fits_batch}


def recipe(name: str) -> Any:
    return yaml.safe_load((RECIPES / name).read_text())


def fields(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the places of all fields that a schema names."""
    if isinstance(value, dict) and (not place or place[-1] not in NAMED_FREELY):
        for key, inner in value.items():
            yield (*place, key)
            yield from fields(inner, (*place, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from fields(inner, (*place, number))


def misspelt(document: Any, place: Place) -> Any:
    """Return the recipe with a letter too many in the name of a field."""
    planted = copy.deepcopy(document)
    value = planted
    for key in place[:-1]:
        value = value[key]
    value[f"{place[-1]}s"] = value.pop(place[-1])
    return planted


def tasks_and_words(name: str) -> tuple[int, list[str]]:
    """Return the number of a recipe's tasks, and the command of each."""
    document = recipe(name)
    if name == BATCH:
        (tasks,) = document["taskGroups"]
        container = tasks["taskSpec"]["runnables"][0]["container"]
        return tasks["taskCount"], [container["entrypoint"], *container["commands"]]
    if name == JOB_SET:
        (jobs,) = document["spec"]["replicatedJobs"]
        assert jobs["replicas"] == 1, "each Job of a JobSet counts its indexes from 0"
        document = jobs["template"]
    spec = document["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == spec["completions"]
    return spec["completions"], spec["template"]["spec"]["containers"][0]["command"]


def part_option(words: list[str]) -> str:
    """Parse a build's command, and return its --part."""
    assert words[:2] == ["dataprep", "build"]
    name, command, arguments = build_command.resolve_command(click.Context(build_command), words[2:])
    return command.make_context(name, arguments).params["part"]


def test_every_recipe_is_checked():
    assert {path.name for path in RECIPES.iterdir()} == set(FITS)


@pytest.mark.parametrize("name", FITS)
def test_a_recipe_fits_the_published_schema(name):
    assert FITS[name](recipe(name))


@pytest.mark.parametrize("name", FITS)
def test_a_misspelt_field_does_not_fit(name):
    document = recipe(name)
    places = list(fields(document))
    assert len(places) > 15
    assert [place for place in places if FITS[name](misspelt(document, place))] == []


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        (JOB, ("spec", "completions"), "8"),
        (JOB, ("spec", "template", "spec", "containers"), {}),
        (JOB_SET, ("spec", "failurePolicy"), 3),
        (BATCH, ("logsPolicy", "destination"), "CLOUD_LOG"),
        (BATCH, ("taskGroups",), {}),
    ],
)
def test_a_value_of_another_kind_does_not_fit(name, place, value):
    document = recipe(name)
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert not FITS[name](document)


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        (JOB, {"JOB_COMPLETION_INDEX": "{}"}),
        (JOB_SET, {"JOB_COMPLETION_INDEX": "{}"}),
        (BATCH, {"BATCH_TASK_INDEX": "{}", "BATCH_TASK_COUNT": "8"}),
    ],
)
def test_the_tasks_of_a_recipe_are_all_parts(name, variables):
    count, words = tasks_and_words(name)
    text = part_option(words)
    for number in range(count):
        environment = {variable: value.format(number) for variable, value in variables.items()}
        assert part_of(text, environment) == Part(number + 1, count)


def test_the_document_shows_every_recipe_and_its_command():
    document = (ROOT / "docs/clusters.md").read_text()
    lines = [command.text for block in blocks("docs/clusters.md") for command in commands(block) if block.info == "sh"]
    for name in FITS:
        assert f"](recipes/{name})" in document
        assert any(f"docs/recipes/{name}" in line for line in lines)


def test_the_document_builds_parts_on_the_workers_of_a_tpu():
    lines = [command.text for block in blocks("docs/clusters.md") for command in commands(block) if block.info == "sh"]
    (words,) = [
        words for words in (words_of(line, "dataprep") for line in lines) if words and words[:2] == ["tpu", "run"]
    ]
    parsed = run_command.make_context("run", ["--zone", "europe-west4-a", *words[2:]]).params
    assert parsed["keep_going"], "parts do not wait for each other"
    text = part_option(list(parsed["argv"]))
    assert part_of(text, {"DATAPREP_WORKER": "3", "DATAPREP_WORKERS": "4"}) == Part(4, 4)
