"""Writes an index and a manifest for data of other tools, without rewriting the data.

find.py      finds the tool that wrote the data, the files of each split, and the images of a folder
shards.py    the samples of all files, read in parallel; statuses of img2dataset's rows
records.py   where in a tar or TFRecord file each sample and its image are; TFRecords described for TFDS
labels.py    integers and the names of their classes, or texts that become classes; keys, sides and fields
run.py       writes index and manifest
"""

from dataprep.adoption.find import ADOPTABLE, AdoptRequest, Found, FoundShard, HeadFiles, find, head_files
from dataprep.adoption.labels import NO_LABELS, read_class_names
from dataprep.adoption.run import Adoption, adopt
from dataprep.adoption.shards import Progress, Quiet

__all__ = [
    "ADOPTABLE",
    "NO_LABELS",
    "AdoptRequest",
    "Adoption",
    "Found",
    "FoundShard",
    "HeadFiles",
    "Progress",
    "Quiet",
    "adopt",
    "find",
    "head_files",
    "read_class_names",
]
