"""The table of formats."""

import subprocess
import sys

import pytest

from dataprep.dataset.manifest import FORMAT_NAMES
from dataprep.errors import UsageError
from dataprep.formats import FORMATS, format_named


@pytest.mark.parametrize(
    ("name", "hint"),
    [("TFRecords", "; did you mean tfrecord?"), ("wds", ""), ("image-folder", "; did you mean imagefolder?")],
)
def test_an_unknown_format_is_answered_with_the_nearest(name, hint):
    with pytest.raises(UsageError) as caught:
        format_named(name)
    assert str(caught.value) == f"format {name!r}, expected one of imagefolder, tfrecord, webdataset{hint}"


def test_no_library_of_a_format_is_imported():
    code = (
        "import sys, dataprep.formats\n"
        "print([name for name in ('tensorflow', 'tensorflow_datasets', 'webdataset', 'torch', 'numpy', 'PIL') "
        "if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "[]\n"


def test_manifests_may_name_every_format():
    assert tuple(FORMATS) == FORMAT_NAMES
