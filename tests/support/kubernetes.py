"""Checks documents for Kubernetes against the published schemas, which are the models of kubeflow-trainer-api.

JSON that a model does not know is left out when the model is written again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from tests.support.on_use import on_use

JOB = on_use("kubeflow_trainer_api.models.io_k8s_api_batch_v1_job:IoK8sApiBatchV1Job")
JOB_SET = on_use("kubeflow_trainer_api.models.jobset_v1alpha2_job_set:JobsetV1alpha2JobSet")
NAMED_FREELY = {"annotations", "labels", "limits", "nodeLabels", "nodeSelector", "requests"}
"""Maps whose keys a schema leaves to the user."""
Place = tuple[str | int, ...]
"""Keys and positions that lead to a value of a document."""


def fits_kubernetes(document: Any) -> bool:
    model = JOB if document.get("kind") == "Job" else JOB_SET
    try:
        written: Any = model.from_dict(document).to_dict()
    except ValueError:
        return False
    return written == document


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
    """Return the document with a letter too many in the name of a field."""
    planted = copy.deepcopy(document)
    value = planted
    for key in place[:-1]:
        value = value[key]
    value[f"{place[-1]}s"] = value.pop(place[-1])
    return planted
