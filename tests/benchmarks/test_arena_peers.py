"""Every peer delivers the images and labels that it is given, augmented as all the others.

The images tell what was done to them: red grows from left to right, green from top to bottom, blue is the class. So a
delivered image shows its crop, its flip and its label. Each peer runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.arena.arena_peers import PEERS, peer_named
from benchmarks.harness import PEERS_PYTHON
from benchmarks.loader_arena import layout_command
from tests.support.builds import build_warm

ROOT = Path(__file__).parents[2]
WNIDS = ("n01440764", "n01443537", "n01484850")
IMAGES_PER_CLASS = 32
HEIGHT, WIDTH = 64, 80
BATCH, SIZE = 16, 32
BATCHES = 12
"""Two epochs of what is stored."""
TAKE_BATCHES = """
import itertools, sys
import numpy as np
from pathlib import Path
from arena_peers import PEERS, PeerConfig
name, root, size, batch, count, out = sys.argv[1:]
if __name__ == "__main__":
    config = PeerConfig(root=Path(root), image_size=int(size), batch_size=int(batch), workers=1)
    batches = itertools.islice(PEERS[name](config).iterate(), int(count))
    images, labels = zip(*((images.copy(), labels.copy()) for images, labels in batches))
    np.savez(out, images=np.stack(images), labels=np.stack(labels))
"""


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every layout by its name; those of the other environment are written by `foreign_layout`."""
    root = tmp_path_factory.mktemp("peers")
    pixels_HWC = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels_HWC[..., 0] = np.linspace(0, 255, WIDTH)
    pixels_HWC[..., 1] = np.linspace(0, 255, HEIGHT)[:, None]
    for label, wnid in enumerate(WNIDS):
        folder = root / "source/train" / wnid
        folder.mkdir(parents=True)
        pixels_HWC[..., 2] = _blue(label)
        for number in range(IMAGES_PER_CLASS):
            Image.fromarray(pixels_HWC).save(folder / f"{wnid}_{number}.JPEG", quality=95, subsampling=0)
    for layout in ("imagefolder", "webdataset", "tfrecord"):
        build_warm("imagenet", root / "source", root / layout, layout, "--split", "train", "--num-shards", 2)
    return root


def foreign_layout(layouts: Path, layout: str) -> Path:
    """Write a layout with the environment of benchmarks, unless it is there."""
    if not (layouts / layout).exists():
        words = ["--images", layouts / "imagefolder/train", "--out", layouts / layout, "--shards", 2]
        _run(*layout_command(layout, *words))
    return layouts / layout


LONG = ("grain", "mosaic", "tf.data", "webdataset")
"""Peers that the soak measures: their pins change rarely, or TensorFlow takes seconds to come up."""


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.long] * (each in LONG)) for each in PEERS])
def test_images_are_cropped_flipped_and_labelled(layouts: Path, tmp_path: Path, name: str) -> None:
    """Crops of 0.2 to 1 of the area and 3/4 to 4/3, half of them flipped, each with the label of its image."""
    images_NHWC, labels_N = _delivered(layouts, tmp_path, name)

    assert images_NHWC.dtype == np.uint8
    assert images_NHWC.shape == (BATCHES * BATCH, SIZE, SIZE, 3)
    np.testing.assert_array_equal(_label_shown(images_NHWC), labels_N)
    left_to_right, top_to_bottom = _growth(images_NHWC, axis=2, channel=0), _growth(images_NHWC, axis=1, channel=1)
    assert 0.3 < np.mean(left_to_right < 0) < 0.7
    assert np.all(top_to_bottom > 0)
    area = np.abs(left_to_right) * top_to_bottom
    assert 0.17 < area.min() < 0.4
    assert 0.85 < area.max() < 1.08
    aspect = np.abs(left_to_right) * WIDTH / (top_to_bottom * HEIGHT)
    assert 0.68 < aspect.min() < 0.85
    assert 1.18 < aspect.max() < 1.45
    epochs = labels_N.reshape(2, -1)
    assert [len(set(epoch.tolist())) for epoch in epochs] == [len(WNIDS)] * 2
    assert np.any(np.diff(epochs[0]) < 0), "stored by class; delivered shuffled"
    assert np.any(epochs[0] != epochs[1])


def test_a_peer_of_a_file_elsewhere_is_found_by_its_path_and_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_loader_elsewhere.py").write_text("class Peer:\n    layout = 'imagefolder'\n")
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert peer_named(f"{tmp_path}/a_loader_elsewhere.py:Peer").layout == "imagefolder"
    assert str(tmp_path) in os.environ["PYTHONPATH"]
    assert peer_named("torchvision") is PEERS["torchvision"]


def _delivered(layouts: Path, tmp_path: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of two epochs."""
    layout = PEERS[name].layout
    is_foreign = layout in ("mds", "array_record")
    root = foreign_layout(layouts, layout) if is_foreign else layouts / layout
    root = root / "train" if (root / "train").is_dir() else root
    script, out = tmp_path / "take_batches.py", tmp_path / "batches.npz"
    script.write_text(TAKE_BATCHES)
    _run(PEERS_PYTHON if is_foreign else sys.executable, script, name, root, SIZE, BATCH, BATCHES, out)
    with np.load(out) as arrays:
        return arrays["images"].reshape(-1, SIZE, SIZE, 3), arrays["labels"].reshape(-1)


def _run(*words: object) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'benchmarks/arena'}:{ROOT}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [str(word) for word in words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _blue(label: int) -> int:
    return 40 + 80 * label


def _label_shown(images_NHWC: np.ndarray) -> np.ndarray:
    return np.rint((images_NHWC[..., 2].mean(axis=(1, 2)) - 40) / 80).astype(np.int64)


def _growth(images_NHWC: np.ndarray, *, axis: int, channel: int) -> np.ndarray:
    """Share of the original's side that an image shows; negative where it is mirrored.

    From the slope of its middle half: antialiasing bends the ends.
    """
    line = images_NHWC[..., channel].astype(np.float64).mean(axis=3 - axis)
    return (line[:, 3 * SIZE // 4] - line[:, SIZE // 4]) / (SIZE // 2) * SIZE / 255
