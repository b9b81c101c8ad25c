"""The layouts that peers read, written from class folders."""

import subprocess
import sys

import pytest
from skimage import data

from loaders import open_loader
from loaders.bench.peers_layouts import labelled, write_layout


@pytest.fixture
def folder(tmp_path):
    from PIL import Image

    for number in range(6):
        path = tmp_path / "images" / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.astronaut()[number * 10 :]).save(path)
    return tmp_path / "images"


def test_labels_are_those_of_sorted_class_folders(folder):
    found = labelled(folder)
    assert sorted(path.name for path, _ in found) == [f"{number}.jpg" for number in range(6)]
    assert all(label == int(path.parent.name[-1]) for path, label in found)


@pytest.mark.parametrize("layout", ["webdataset", "tfrecord"])
def test_shards_hold_every_image(folder, tmp_path, layout):
    from dataprep.adoption import AdoptRequest, adopt
    from loaders.diagnosis.sample import _Quiet

    out = tmp_path / "out"
    out.mkdir()
    write_layout(layout, labelled(folder), out, 2)
    url = adopt(AdoptRequest(url=str(out), index_url=str(tmp_path / "index"), format=layout), _Quiet()).url
    with open_loader(url, batch_size=6, image_size=32, shuffle=False) as loader:
        (batch,) = loader
    assert sorted(batch.labels.tolist()) == [0, 0, 0, 1, 1, 1]


def test_the_command_line_lists_the_layouts():
    command = [sys.executable, "-m", "loaders.bench.peers_layouts", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "{webdataset,tfrecord,mds,array_record}" in done.stdout
