"""The tf.data adapter."""

import json

import numpy as np
import pytest

from loaders import mixture, open_loader, tf
from tests.support.adapters import AdapterContract


class TestTF(AdapterContract):
    adapter = "tf"


def test_arrays_that_a_transform_returned_are_lists_in_json():
    boxes, masks = np.array([[1.5, 2.0, 3.0, 4.0]]), np.eye(2, dtype=np.uint8)[None]
    found = json.loads(tf._text({"bbox": boxes, "segmentation": masks, "raw": [b"\0"], "label": [7]}))
    assert found == {"bbox": boxes.tolist(), "segmentation": masks.tolist(), "raw": ["AA=="], "label": [7]}


@pytest.mark.parametrize("epochs", [None, 9])
def test_a_mixture_ends_where_its_loader_does(dataset, epochs):
    parts = mixture([(str(dataset("webdataset")), 1), (str(dataset("coco")), 1)], at_end="stop")
    settings = {"batch_size": 12, "image_size": 32}
    with open_loader(parts, **settings) as loader:
        expected = [batch.keys for _ in range(9) for batch in loader]
    with open_loader(parts, **settings) as loader:
        assert [batch["keys"] for batch in tf._elements(loader, epochs)] == expected
