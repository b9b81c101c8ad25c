import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.builder.finished import readable_manifest
from dataprep.inspection import contact_sheet
from dataprep.inspection.contact_sheet import NEIGHBOURS, find_oddities, open_sheet
from dataprep.storage import open_storage
from tests.support.builds import build
from tests.support.jpeg_forms import by_pillow, picture
from tests.support.own_data import build_own, write_files
from tests.support.own_data import picture as picture_of

SIZES = [(40, 40), (64, 32), (30, 90), (40, 40), (90, 31), (48, 48), (40, 40), (120, 118)]
"""Height and width of each picture; those of 40 by 40 pixels have the same bytes."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("oddities")
    (folder / "pictures").mkdir()
    for number, (height, width) in enumerate(SIZES):
        data = by_pillow(picture(np.random.default_rng(height), height, width))
        (folder / "pictures" / f"{number}.jpg").write_bytes(data)
    build("folder", folder / "pictures", folder / "built", "webdataset", "--num-shards", 3)
    return folder / "built"


def opened(root):
    storage = open_storage(str(root))
    manifest = readable_manifest(storage)
    return storage, manifest, manifest.splits[0]


def rows(root):
    return pq.read_table(root / "index/train.parquet").to_pylist()


def test_positions_are_those_of_the_most_extreme_images(built):
    storage, _, split = opened(built)
    _, extremes = find_oddities(storage, split)
    index = rows(built)
    pixels = [row["height"] * row["width"] for row in index]
    shapes = [row["width"] / row["height"] for row in index]
    density = [row["image_bytes"] / count for row, count in zip(index, pixels, strict=True)]
    measures = {"widest": [-shape for shape in shapes], "narrowest": shapes, "fewest pixels": pixels}
    measures |= {"most pixels": [-count for count in pixels], "fewest bytes a pixel": density}
    for name, values in measures.items():
        assert list(extremes[name]) == sorted(range(len(values)), key=lambda at, v=values: v[at])[:4]


def test_a_measure_in_which_all_images_are_the_same_has_no_extremes(tmp_path):
    write_files(tmp_path / "pictures", {f"{number}.jpg": picture_of(number) for number in range(5)})
    storage, _, split = opened(build_own(tmp_path / "pictures", tmp_path / "out") and tmp_path / "out")
    assert find_oddities(storage, split)[1].keys() <= {"fewest bytes a pixel", "most bytes a pixel"}


def test_images_of_the_same_bytes_are_one_group(built):
    storage, _, split = opened(built)
    same = tuple(at for at, row in enumerate(rows(built)) if (row["height"], row["width"]) == (40, 40))
    assert find_oddities(storage, split)[0] == (same,)


def test_a_sheet_has_duplicates_extremes_and_neighbours(built):
    sheet = open_sheet(*opened(built))
    index = rows(built)
    [group] = sheet.duplicates
    assert len({each.sha256 for each in group}) == 1
    assert {each.key for each in group} == {row["key"] for row in index if row["height"] == row["width"] == 40}
    assert sheet.extremes[0][0] == "narrowest"
    keys = [row["key"] for row in index]
    for shown, near in sheet.spread:
        at = keys.index(shown.key)
        assert [each.key for each in near] == keys[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1]


def test_equal_checksums_of_different_bytes_are_no_duplicates(built, monkeypatch):
    """CRC32C says only where to look."""
    storage, manifest, split = opened(built)
    index = rows(built)
    assert index[0]["image_crc32c"] != index[1]["image_crc32c"]
    monkeypatch.setattr("dataprep.inspection.contact_sheet.find_oddities", lambda *_: (((0, 1),), {}))
    assert open_sheet(storage, manifest, split).duplicates == ()


def test_an_index_without_checksums_has_no_duplicates(monkeypatch, built):
    class Index:
        def batches(self, columns):
            yield pa.record_batch([[5, 5], [4, 4], [4, 4], pa.array([None, 1], pa.uint32())], names=columns)

    monkeypatch.setattr(contact_sheet, "open_index", lambda *_, **__: Index())
    storage, _, split = opened(built)
    assert find_oddities(storage, split)[0] == ()
