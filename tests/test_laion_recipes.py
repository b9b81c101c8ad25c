"""The recipes of docs/laion.md for other tables than LAION's: each command is run on a small table of that shape."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.manifest import read_manifest
from dataprep.storage import open_storage
from tests.support.builds import succeeds
from tests.support.picture_web import picture, picture_web

SECTION = Path("docs/laion.md").read_text().split("### Other tables")[1]
LINES = re.search(r"```sh\n(.*?)```", SECTION, re.DOTALL).group(1).splitlines()
ROWS = 6
CHANGED = 4
"""Picture whose hash in the table is another one."""


@pytest.fixture(scope="module")
def web():
    with picture_web() as server:
        yield server


def urls(web):
    return [f"http://127.0.0.1:{web.port}/{number}.jpg" for number in range(ROWS)]


def captions():
    return [f'a "quoted caption {number}' for number in range(ROWS)]


def write_tsv(path, *columns):
    path.write_text("".join("\t".join(row) + "\n" for row in zip(*columns, strict=True)))


def write_coyo(folder, web):
    folder.mkdir(parents=True)
    columns = {
        "id": list(range(ROWS)),
        "url": urls(web),
        "text": captions(),
        "width": [64] * ROWS,
        "height": [48] * ROWS,
        "image_phash": ["cc7273dc330d0727"] * ROWS,
        "text_length": [17] * ROWS,
        "num_faces": [0] * ROWS,
        "clip_similarity_vitb32": [0.3] * ROWS,
        "nsfw_score_opennsfw2": [0.1] * (ROWS - 1) + [0.9],
        "watermark_score": [0.2] * ROWS,
    }
    pq.write_table(pa.table(columns), folder / "part-00000-c000.snappy.parquet")
    (folder / "_SUCCESS").write_bytes(b"")


def write_datacomp(folder, web):
    folder.mkdir()
    digests = [hashlib.sha256(picture(number)).hexdigest() for number in range(ROWS)]
    digests[CHANGED] = digests[CHANGED][::-1]
    columns = {
        "uid": [f"{number:032x}" for number in range(ROWS)],
        "url": urls(web),
        "text": captions(),
        "original_width": [64] * ROWS,
        "original_height": [48] * ROWS,
        "clip_b32_similarity_score": pa.array([0.25] * ROWS, pa.float32()),
        "clip_l14_similarity_score": pa.array([0.25] * ROWS, pa.float32()),
        "face_bboxes": [[[0.1, 0.2, 0.3, 0.4]]] * ROWS,
        "sha256": digests,
    }
    pq.write_table(pa.table(columns), folder / "0035af9f90f581816acf269df5eb37ad.parquet")


@pytest.fixture(scope="module")
def world(web, tmp_path_factory):
    """A folder in which all lines of the recipes have been run."""
    folder = tmp_path_factory.mktemp("recipes")
    write_tsv(folder / "cc12m.tsv", urls(web), captions())
    write_coyo(folder / "coyo-700m/data", web)
    write_datacomp(folder / "datacomp_1b", web)
    for line in LINES:
        program, *words = shlex.split(line)
        with contextlib.chdir(folder):
            if program == "dataprep":
                succeeds(*words, "--allow-network", "127.0.0.0/8", "--host-per-second", "1000", "--workers", "1")
            else:
                subprocess.run([sys.executable, *words], check=True)
    return folder


@pytest.mark.parametrize(
    ("output", "name", "samples"),
    [
        ("cc12m", "cc12m", ROWS),
        ("coyo", "coyo-700m", ROWS - 1),
        ("datacomp", "datacomp-1b", ROWS - 1),
    ],
)
def test_each_recipe_builds_its_table(world, output, name, samples):
    manifest = read_manifest(open_storage(str(world / output)))
    assert (manifest.name, manifest.splits[0].samples) == (name, samples)
    assert manifest.origin.startswith("https://")
    assert sorted(row["caption"] for row in rows(world / output)) == captions()


def rows(output):
    return [row for path in output.glob("train/*.parquet") for row in pq.read_table(path).to_pylist()]


def test_a_changed_image_of_datacomp_is_rejected_by_its_hash(world):
    ends = {row["url"].rpartition("/")[2]: (row["status"], row["error_message"]) for row in rows(world / "datacomp")}
    assert ends[f"{CHANGED}.jpg"] == ("failed_to_download", "hash mismatch")
    assert sum(status == "success" for status, _ in ends.values()) == ROWS - 1
