"""What the error of a failed Spark job means: one line instead of two stack traces."""

from __future__ import annotations

import re
import sys

from dataprep import __version__
from dataprep.errors import DISTRIBUTION, BuildError, DataprepError, UsageError
from dataprep.messages import shortened

_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
_LONGEST = 300
_CAUSES = (
    r"most recent failure: .*?\(TID \d+\) \([^)]*\): (.+)",
    r"Job aborted due to stage failure: (.+)",
    r"(Job \d+ cancelled.*)",
    r"An error occurred while calling [^\n]*\n: (.+)",
)
"""Patterns of the line that names the cause, best first."""


def explained(text: str) -> DataprepError:
    """Return the error to show for the text of an exception of PySpark or of its gateway to Java."""
    if found := re.search(r"different version: (\S+) than that in driver: (\d+\.\d+)", text):
        return UsageError(
            f"--runner spark: the workers' Python is {found[1]}, this command's is {found[2]}; set PYSPARK_PYTHON to a "
            f"Python {found[2]} that is on every node, with {DISTRIBUTION} {__version__}"
        )
    if found := re.search(r'Cannot run program "([^"\n]{1,200})"', text):
        return UsageError(
            f"--runner spark: a worker cannot start {found[1]}; set PYSPARK_PYTHON to a Python {_HERE} that is on "
            f"every node, with {DISTRIBUTION} {__version__}"
        )
    if found := re.search(r"Error from python worker:\s*(\S[^\n]*)", text):
        return UsageError(
            f"--runner spark: a worker's Python does not start: {shortened(found[1], _LONGEST)}; set PYSPARK_PYTHON to "
            f"a Python {_HERE} that is on every node, with {DISTRIBUTION} {__version__}"
        )
    if found := re.search(r"ModuleNotFoundError: No module named '([\w.]{1,100})'", text):
        return UsageError(
            f"--runner spark: the workers' Python has no module {found[1]}; install {DISTRIBUTION} {__version__} and "
            "the packages that this build needs on every node, and set PYSPARK_PYTHON to that Python"
        )
    if "Answer from Java side is empty" in text or "Connection refused" in text:
        return _unfinished("Spark's Java process has ended")
    return _unfinished(_cause(text))


def _cause(text: str) -> str:
    """Return the line that names the cause: of a Python traceback its last line, of a Java one its first."""
    if "Traceback (most recent call last)" in text:
        traceback = re.split(r"\n\s*SQLSTATE|\n\tat ", text.partition("Traceback (most recent call last)")[2])[0]
        return traceback.strip().rpartition("\n")[2]
    for pattern in _CAUSES:
        if found := re.search(pattern, text):
            return found[1]
    return text.strip().partition("\n")[0]


def _unfinished(cause: str) -> BuildError:
    line = shortened(" ".join(cause.split()), _LONGEST)
    return BuildError(f"--runner spark: {line}. Run the same command again: it goes on where it stopped")
