"""The exception tree. Every error that a user can cause or meet is a DataprepError and carries its exit code.

DataprepError                    1  a check failed or a build could not be finished
├── UsageError                   2  wrong flag, wrong value, refused combination
│   └── MissingPackageError      2  a package that an extra installs is missing; also an ImportError
├── SourceError                  2  original files: absent, truncated, of the wrong count, hostile
├── ImageError                   1  one image was rejected and the limit on rejections was exceeded
├── StorageError                 1  an operation on a disk or bucket failed
│   ├── FullError                1  a disk, a quota or a limit takes no more bytes: another attempt would not help
│   ├── UnansweredError          1  a bucket did not answer in time
│   ├── ConflictError            1  another writer has changed or written this object
│   └── AccessError              2  a permission or credential is missing, or the bucket does not exist
│       └── CredentialsError     2  there are no valid credentials
├── FormatError                  1  a shard, index or manifest does not follow its format
├── VerificationError            1  the dataset differs from its manifest
├── BuildError                   1  shards could not be built; a rerun continues where it stopped
└── UndecidedError               3  the known facts do not decide the question
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

DISTRIBUTION = "tpu-dataprep"
"""Name under which pip installs this project. `dataprep`, the name to import, is another project's on the index."""


class DataprepError(Exception):
    """Base of all expected errors. The text is one line: what was got, what was expected, what to do."""

    exit_code = 1


class UsageError(DataprepError):
    exit_code = 2


class MissingPackageError(UsageError, ImportError):
    """A package of an extra is not installed; the text has the command that installs it."""

    exit_code = 2


class SourceError(DataprepError):
    exit_code = 2
    missing: Iterable[tuple[str, str]] = ()
    """Missing images that a table names, each with its row; the error's text names only the first ones."""
    columns: Mapping[str, str] = {}
    """Columns of a table that cannot be features, each with the reason, if nothing else is wrong."""


class ImageError(DataprepError): ...


class StorageError(DataprepError): ...


class FullError(StorageError): ...


class UnansweredError(StorageError): ...


class ConflictError(StorageError): ...


class AccessError(StorageError):
    exit_code = 2


class CredentialsError(AccessError): ...


class FormatError(DataprepError): ...


class VerificationError(DataprepError): ...


class BuildError(DataprepError): ...


class UndecidedError(DataprepError):
    exit_code = 3


def install_hint(extra: str) -> str:
    """Return the command that installs the packages of an extra: `pip install 'tpu-dataprep[laion]'`."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@contextmanager
def needing(extra: str, what: str, otherwise: str = "") -> Iterator[None]:
    """Turn an import that fails inside the block into one line with the command that installs the package.

    Args:
        extra: Extra of this project that has the package.
        what: What needs it, the beginning of the line. The script of this name ends, also if it is started as
            `python -m`, because nothing catches an error that a script's own imports raise.
        otherwise: Other advice, the end of the line.

    Raises:
        MissingPackageError: An import failed.
    """
    try:
        yield
    except MissingPackageError:
        raise
    except ImportError as error:
        missing = MissingPackageError(f"{what}: {error}; {install_hint(extra)}{otherwise}")
        script = os.path.basename(sys.argv[0])  # noqa: PTH119  pathlib is not loaded otherwise
        if what not in (script, f"dataprep-{script.removesuffix('.py').replace('_', '-')}"):
            raise missing from error
        print(missing, file=sys.stderr)
        raise SystemExit(missing.exit_code) from None
