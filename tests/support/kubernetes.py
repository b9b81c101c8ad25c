"""Checks documents for Kubernetes against its published schemas: the models of kubeflow-trainer-api.

JSON that a model does not know is left out when the model is written again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from kubeflow_trainer_api.models.io_k8s_api_batch_v1_job import IoK8sApiBatchV1Job
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

NAMED_FREELY = {"annotations", "labels", "limits", "nodeSelector", "requests"}
"""Maps whose keys a schema leaves to the user."""
Place = tuple[str | int, ...]
"""Keys and positions that lead to a value of a document."""


def fits_kubernetes(document: Any) -> bool:
    model = IoK8sApiBatchV1Job if document.get("kind") == "Job" else JobsetV1alpha2JobSet
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
