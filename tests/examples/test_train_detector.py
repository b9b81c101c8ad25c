"""The example of detection: its targets are where pycocotools has the objects, and both models train on them."""

import os
import re
import runpy
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from loaders import open_loader
from tests.support import warm
from tests.support.coco import build_coco, pycocotools_view, unpacked
from tests.support.markdown import ROOT
from tests.support.on_use import on_use

TorchBatches = on_use("loaders.torch:TorchBatches")
EXAMPLE = ROOT / "examples/train_detector.py"


@pytest.fixture(scope="module")
def shards(originals, tmp_path_factory) -> str:
    output = tmp_path_factory.mktemp("detected") / "coco"
    build_coco(originals["coco-annotated"], output, annotations=("instances",))
    return str(output)


def letterboxed(mask_HW: np.ndarray, side: int, *, flip: bool) -> np.ndarray:
    """A mask of the original image in the pixels of a row, by Pillow."""
    height, width = mask_HW.shape
    size = round(width * side / max(height, width)), round(height * side / max(height, width))
    row = Image.new("L", (side, side))
    row.paste(Image.fromarray(mask_HW * 255).resize(size), ((side - size[0]) // 2, (side - size[1]) // 2))
    found = np.asarray(row) > 127
    return found[:, ::-1] if flip else found


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools' arrays
@pytest.mark.parametrize("split", ["train", "val"])
def test_boxes_and_masks_are_where_pycocotools_has_them(shards, originals, tmp_path, split):
    example = runpy.run_path(str(EXAMPLE))
    side, overlaps = example["SIDE"], []
    view, by_file = pycocotools_view(unpacked(originals["coco-annotated"], tmp_path), "instances", split)
    labels = {number: place for place, number in enumerate(sorted(view.cats), start=1)}
    settings = example["LOADER"] | {"fields": (*example["LOADER"]["fields"], "filename"), "views": True}
    with open_loader(shards, split, batch_size=1, **settings) as loader:
        for batch in islice(TorchBatches(loader), 16):
            (target,), (seen,), (name,) = example["targets_of"](batch), batch.views, batch.fields["filename"]
            due = [each for each in by_file[name] if not each["iscrowd"]]
            assert target["labels"].tolist() == [labels[each["category_id"]] for each in due]
            scale = side / max(seen.image_height, seen.image_width)
            left, top = ((side - round(each * scale)) // 2 for each in (seen.image_width, seen.image_height))
            for box, mask, each in zip(target["boxes"].tolist(), target["masks"].numpy() > 0, due, strict=True):
                x, y, width, height = (value * scale for value in each["bbox"])
                first, last = left + x, left + x + width
                if seen.flip:
                    first, last = side - last, side - first
                assert box == pytest.approx([first, top + y, last, top + y + height], abs=1.01)
                drawn = letterboxed(view.annToMask(each), side, flip=seen.flip)
                overlaps.append((drawn & mask).sum() / max(1, (drawn | mask).sum()))
    assert len(overlaps) >= 10
    assert np.mean(overlaps) > 0.85  # a shift by one pixel leaves 0.8 or less: many objects are small


@pytest.mark.parametrize("kind", [pytest.param("fasterrcnn", marks=pytest.mark.long), "maskrcnn"])
def test_the_loss_falls(shards, kind):
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    with warm.start("tests.examples.test_train_detector", shards, kind, environment=variables, folder=ROOT) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    losses = [float(text) for text in re.findall(r"^step \d+: loss (.+)$", output, re.MULTILINE)]
    assert len(losses) == 15
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 70


if __name__ == "__main__":
    runpy.run_path(str(EXAMPLE), run_name="__main__")
