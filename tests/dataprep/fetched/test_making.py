"""How img2dataset made its images must be said, and what the images that are there contradict is refused."""

from __future__ import annotations

import tarfile
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.paths import RETRY_JSON
from dataprep.errors import UsageError
from dataprep.fetched.existing import open_fetched
from dataprep.fetched.making import rows_as_made
from dataprep.storage import open_storage
from tests.support.fetched import ALL, MADE_SO, ROWS, adopt_here, adopted, check_adopted, retry
from tests.support.img2dataset import MADE, write_img2dataset
from tests.support.interop import read_features_with_tfds
from tests.support.picture_web import picture


def test_what_is_not_said_is_img2datasets_default(web, tmp_path):
    dataset = open_fetched(adopted(web, tmp_path / "cc3m", digest="md5"))
    with pytest.raises(UsageError, match="give its --resize-mode, which is border by default"):
        rows_as_made(dataset, {"image_size": 32}, print)
    rows = rows_as_made(dataset, MADE_SO, print)
    assert rows.encode == MADE
    assert rows.digest == "md5"


def test_a_dataset_of_png_images_without_captions_is_retried(web, tmp_path):
    encode = replace(MADE, encode_format="png", encode_quality=3, resize_mode="keep_ratio")
    url = adopted(web, tmp_path / "cc3m", captions=False, encode=encode)
    web.faults.clear()
    with pytest.raises(UsageError, match="--encode-quality 95: png takes 0 to 9"):
        retry(url, making=MADE_SO)
    making = MADE_SO | {"encode_quality": 3, "resize_mode": "keep_ratio"}
    assert retry(url, making=making).came == 5
    with tarfile.open(tmp_path / "cc3m" / "00004.tar") as tar:
        assert {name.partition(".")[2] for name in tar.getnames()} == {"json", "png"}
    check_adopted(url)


def test_options_that_contradict_the_existing_images_are_refused(web, tmp_path):
    url = adopted(web, tmp_path / "cc3m", encode=replace(MADE, resize_mode="keep_ratio"))
    text = "an image of 64 x 48 is stored as 43 x 32; border at 32 makes 32 x 32; say with --image-size, --resize-mode"
    with pytest.raises(UsageError, match=text):
        retry(url, making=MADE_SO)
    with pytest.raises(UsageError, match="keep_ratio at 256 makes 341 x 256"):
        retry(url, making={"resize_mode": "keep_ratio"})
    assert not open_storage(url).stat(RETRY_JSON)
    assert retry(url, making=MADE_SO | {"resize_mode": "keep_ratio"}).rows == 5


def test_images_stored_without_reencoding_are_retried_without_reencoding(web, tmp_path):
    """And numbers that img2dataset wrote as empty texts, because it had none, are texts in new records, too."""
    folder = write_img2dataset(web, tmp_path / "cc3m", "tfrecord", ROWS, encode=None)
    for path in folder.glob("0000?.parquet"):
        table = pq.read_table(path)
        score = pa.array([0.25 if key == "000002" else None for key in table.column("key").to_pylist()], pa.float64())
        pq.write_table(table.set_column(table.column_names.index("LICENSE"), "LICENSE", score), path)
    adopt_here(folder)
    web.faults.clear()
    with pytest.raises(UsageError, match="--disable_all_reencoding"):
        retry(str(folder), making=MADE_SO)
    assert retry(str(folder), making={"resize_mode": "no", "skip_reencode": True}).came == 5
    check_adopted(str(folder))
    read = {example["key"].decode(): example for example in read_features_with_tfds(folder)}
    assert (read["000002"]["jpg"], read["000002"]["width"], read["000002"]["LICENSE"]) == (picture(2), b"64", b"0.25")
    assert (read["000003"]["jpg"], read["000003"]["width"], read["000003"]["LICENSE"]) == (picture(3), b"", b"")
    assert len(read) == ROWS - 2


def test_a_limit_by_which_rows_failed_must_be_given(web, tmp_path):
    url = adopted(web, tmp_path / "cc3m", messages={3: "image too small", 4: "hash mismatch"})
    told = []
    with pytest.raises(UsageError, match=r"rows failed for 'image too small'; .*--min-image-size"):
        retry(url, making=MADE_SO)
    web.faults.clear()
    retried = retry(url, ALL, making=MADE_SO | {"min_image_size": 49}, log=told.append)
    assert (retried.rows, retried.came) == (9, 0)
    assert told == ["img2dataset kept no hashes of rows that failed, so their downloads are not verified"]
