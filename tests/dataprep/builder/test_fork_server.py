"""The process that forks the workers."""

import gc
import sys

from dataprep.builder.pool import Pool
from dataprep.host.program import COLLECT_AFTER


def look(index: int) -> tuple[int, bool]:
    return gc.get_threshold()[0], "importlib.metadata" in sys.modules and "email.parser" in sys.modules


def test_workers_need_not_import_what_reads_versions():
    with Pool(1, print) as pool:
        assert list(pool.run(look, [0])) == [(COLLECT_AFTER, True)]
