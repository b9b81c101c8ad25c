"""Checks documents for Kubernetes against the published schemas.

Those of Job and JobSet are the models of kubeflow-trainer-api, those of queues are Kueue's own in `kueue_schemas.json`.

JSON that a model does not know is left out when the model is written again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from tests.support.on_use import on_use

JOB = on_use("kubeflow_trainer_api.models.io_k8s_api_batch_v1_job:IoK8sApiBatchV1Job")
JOB_SET = on_use("kubeflow_trainer_api.models.jobset_v1alpha2_job_set:JobsetV1alpha2JobSet")
KUEUE: dict[str, Any] = json.loads(Path(__file__).with_name("kueue_schemas.json").read_text())
METADATA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "namespace": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
"""What of ObjectMeta a queue has; its own schema leaves it open."""
NAMED_FREELY = {"annotations", "labels", "limits", "nodeLabels", "nodeSelector", "requests"}
"""Maps whose keys a schema leaves to the user."""
Place = tuple[str | int, ...]
"""Keys and positions that lead to a value of a document."""


def fits_kubernetes(document: Any) -> bool:
    if document.get("kind") in KUEUE:
        return jsonschema.Draft202012Validator(_closed(KUEUE[document["kind"]])).is_valid(document)
    model = JOB if document.get("kind") == "Job" else JOB_SET
    try:
        written: Any = model.from_dict(document).to_dict()
    except ValueError:
        return False
    return written == document


def _closed(schema: Any) -> Any:
    """Return a schema that refuses fields which it does not name, as the server of Kubernetes does when asked to."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        closed["additionalProperties"] = False
    if schema.get("type") == "object" and "apiVersion" in schema.get("properties", {}):
        closed["required"] = ["apiVersion", "kind", "metadata", "spec"]
        closed["properties"]["metadata"] = METADATA
    return closed


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
