import subprocess
import sys

import numpy
import pyarrow.parquet

from dataprep.arrays import np, pq


def test_nothing_is_imported_before_it_is_used():
    code = "import sys; from dataprep.arrays import np, pa; n = 'numpy' in sys.modules; pa.int8(); print(n, np.int8(3))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "3"]


def test_a_name_is_the_modules_own():
    assert (np.ndarray, pq.ParquetFile) == (numpy.ndarray, pyarrow.parquet.ParquetFile)
    assert vars(np)["ndarray"] is numpy.ndarray  # found without a call from the second time on
