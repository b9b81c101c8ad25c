"""Conversion of samples to the bytes of a dataset's files, and back.

base.py                     the interface of a format, and what each requires of a sample
webdataset.py, tars.py      shards that are tars; members of any tar
tfrecord.py, example.py     shards of tf.train.Example messages; the messages themselves. tfds.py describes them to TFDS
imagefolder.py              images in files of their own
fields.py                   fields of one record, such as a caption, for readers
pictures.py                 what a picture must be, and how it is decoded
_check.c, _restart.c        extensions: finds sound JPEGs in half of libjpeg's time; adds restart markers to JPEGs
img2dataset.py              names, statuses and reasons of img2dataset
"""

from __future__ import annotations

from dataprep.formats.base import ShardFormat
from dataprep.formats.imagefolder import ImageFolderFormat
from dataprep.formats.tfrecord import TFRecordFormat
from dataprep.formats.webdataset import WebDatasetFormat

FORMATS: dict[str, ShardFormat] = {
    "imagefolder": ImageFolderFormat(),
    "tfrecord": TFRecordFormat(),
    "webdataset": WebDatasetFormat(),
}
