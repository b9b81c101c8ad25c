"""Hostile original files, over 300 of them: what each is, and what must become of it.

`HOSTILE` is a fixed list. A case writes its original files into an empty folder; the dataset is then to be enumerated
and built with `allow_partial`, so that a count is never the reason. Three outcomes:

    refused     enumerating raises SourceError, on one line that `words` (a regular expression) is found in
    rejected    it enumerates, and a build lists `key` as rejected for the reason `words`
    harmless    it enumerates to `samples` references, and a build with its default options succeeds
"""

from __future__ import annotations

from tests.support.hostile_case import Case
from tests.support.hostile_folders import FOLDER_CASES
from tests.support.hostile_images import IMAGE_CASES
from tests.support.hostile_labels import LABEL_CASES
from tests.support.hostile_tars import TAR_CASES
from tests.support.hostile_zips import ZIP_CASES

HOSTILE: tuple[Case, ...] = (*TAR_CASES, *ZIP_CASES, *FOLDER_CASES, *LABEL_CASES, *IMAGE_CASES)
