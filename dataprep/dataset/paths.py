"""Names below a dataset's root that several packages use; dataprep/build describes what lies under them."""

from __future__ import annotations

import re

BUILD = "_build"
"""Folder of a running build."""
PLAN_JSON = f"{BUILD}/plan.json"
"""Plan of the build that owns this output; see dataprep/build/claim.py."""
OVERWRITING = f"{BUILD}/overwriting"
"""List of the names that `--overwrite` removes; while this file exists, no build can begin."""
OVERWRITTEN = f"{BUILD}/overwritten"
"""Marker that `--overwrite` is done and a build may begin; in a bucket it lists the names that were removed."""
UNPACKED = f"{BUILD}/unpacked-"
"""Begin of the names of images that were unpacked from parquet files; see dataprep/sources/unpacked.py."""
RETRY = "_retry"
"""Folder of a running `dataprep retry-failed`."""
RETRY_JSON = f"{RETRY}/plan.json"
"""Plan of that run; see dataprep/fetched/retry_plan.py."""
README, CROISSANT = "README.md", "croissant.json"
"""The cards of a dataset, which no digest includes and users may edit; see dataprep/build/cards.py."""
_HIDDEN = re.compile(r"(?:^|/)(?:\.|__MACOSX(?:/|\Z))")


def is_hidden_name(name: str) -> bool:
    """Return whether a path is hidden, like files that macOS and shells leave behind."""
    return _HIDDEN.search(name) is not None
