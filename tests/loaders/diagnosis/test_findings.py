"""The document of a diagnosis."""

import json

import pytest

from loaders.config import LoaderConfig
from loaders.diagnosis.devices import parse_simulated
from loaders.diagnosis.diagnose import apply_best, diagnose
from loaders.diagnosis.findings import to_document
from loaders.diagnosis.observed_run import RunSetup

SECONDS = 0.6
SMALL = {"batch_size": 8, "image_size": 32, "threads": 2}


def run(url, device, *, transfer_ahead=2, **settings):
    config = LoaderConfig(**(SMALL | settings))
    setup = RunSetup(url=str(url), split="train", config=config, transfer_ahead=transfer_ahead)
    device = parse_simulated(device)
    return apply_best(setup, device, diagnose(setup, device, seconds=SECONDS), seconds=SECONDS)


def test_a_diagnosis_becomes_json_with_every_field(dataset):
    document = json.loads(json.dumps(to_document(run(dataset("imagefolder"), "simulated:200"))))

    assert document["schema_version"] == 1
    assert sum(document[f"{name}_share"] for name in ("wait", "transfer", "compute")) == pytest.approx(1)
    assert 0 < len(document["timeline"]) <= 200
    assert document["settings"]["batch_size"] == 8
    assert document["machine"]["cores"] >= 1
