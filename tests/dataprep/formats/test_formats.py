"""The table of formats."""

import subprocess
import sys

from dataprep.dataset.manifest import FORMAT_NAMES
from dataprep.formats import FORMATS


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
