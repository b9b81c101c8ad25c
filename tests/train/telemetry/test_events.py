"""Event files, read by TensorFlow in a process of its own."""

import io
import json
import math
import struct
import subprocess
import sys

import pytest
from PIL import Image

from train.telemetry.logs import EventFile

READ = """
import glob, json, sys
from tensorflow.compat.v1.train import summary_iterator
found = []
for event in summary_iterator(glob.glob(sys.argv[1] + "/events.out.tfevents.*")[0]):
    found.append([event.step, event.file_version, event.session_log.status])
    for value in event.summary.value:
        image = value.image
        found.append([event.step, value.tag, value.simple_value, image.height, image.width, image.colorspace,
                      image.encoded_image_string.hex()])
print(json.dumps(found))
"""


def test_values_beyond_float32_are_written_as_infinite(tmp_path):
    """A rate of 1e41 ends a run for its loss, and not for the file that says so."""
    events = EventFile(tmp_path)
    events.scalars(1, {"train/lr": 1e41, "train/loss": -1e300})
    events.close()
    written = next(tmp_path.iterdir()).read_bytes()
    assert [written.count(struct.pack("<Bf", 0x15, value)) for value in (math.inf, -math.inf)] == [1, 1]


@pytest.mark.long
def test_tensorflow_reads_what_was_written(tmp_path):
    png = io.BytesIO()
    Image.new("RGB", (300, 200), (1, 2, 3)).save(png, "PNG")
    events = EventFile(tmp_path / "new" / "folder", restarts_at=3)
    events.scalars(3, {"train/loss": 0.5, "train/lr": 1e-4})
    events.image(1_000_000, "reconstruction", png.getvalue(), height=200, width=300)
    events.close()
    run = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "new" / "folder")], capture_output=True, text=True, check=True
    )
    version, start, at_3, loss, lr, at_million, image = json.loads(run.stdout)
    assert (version, start) == ([0, "brain.Event:2", 0], [3, "", 1])  # SessionLog.START
    assert (at_3, at_million) == ([3, "", 0], [1_000_000, "", 0])
    assert loss[:3] == [3, "train/loss", 0.5]
    assert lr[:2] == [3, "train/lr"]
    assert abs(lr[2] - 1e-4) < 1e-10
    assert image == [1_000_000, "reconstruction", 0.0, 200, 300, 3, png.getvalue().hex()]
