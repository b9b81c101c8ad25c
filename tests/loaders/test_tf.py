"""The tf.data adapter."""

import json

import numpy as np

from loaders import tf
from tests.support.adapters import AdapterContract


class TestTF(AdapterContract):
    adapter = "tf"


def test_arrays_that_a_transform_returned_are_lists_in_json():
    boxes, masks = np.array([[1.5, 2.0, 3.0, 4.0]]), np.eye(2, dtype=np.uint8)[None]
    found = json.loads(tf._text({"bbox": boxes, "segmentation": masks, "raw": [b"\0"], "label": [7]}))
    assert found == {"bbox": boxes.tolist(), "segmentation": masks.tolist(), "raw": ["AA=="], "label": [7]}
