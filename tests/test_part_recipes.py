"""Recipes for parts of a build on schedulers: each fits the scheduler's published schema, and its command is right.

The schemas are the models of kubeflow-trainer-api, which holds those of Kubernetes and JobSet, and Google's messages of
Batch, whose parser refuses what it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest
import yaml
from google.protobuf import json_format

from dataprep.commands.build import command as build_command
from dataprep.commands.tpu import run_command
from pipelines.engines import Part, part_of
from tests.support.kubernetes import fits_kubernetes
from tests.support.markdown import ROOT, blocks, commands, words_of
from tests.support.on_use import on_use

JobOfBatch = on_use("google.cloud.batch_v1:Job")
RECIPES = ROOT / "docs/recipes"
JOB, JOB_SET, BATCH = "indexed-job.yaml", "jobset.yaml", "batch.json"


def fits_batch(document: Any) -> bool:
    try:
        json_format.ParseDict(document, JobOfBatch.pb(JobOfBatch()))
    except json_format.ParseError:
        return False
    return True


FITS: dict[str, Callable[[Any], bool]] = {JOB: fits_kubernetes, JOB_SET: fits_kubernetes, BATCH: fits_batch}


def recipe(name: str) -> Any:
    return yaml.safe_load((RECIPES / name).read_text())


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
