"""The exception tree. Every error that a user can cause or meet is a DataprepError and carries its exit code.

DataprepError                    1  a check failed or a build could not be finished
├── UsageError                   2  wrong flag, wrong value, refused combination
├── SourceError                  2  original files: absent, truncated, of the wrong count, hostile
├── ImageError                   1  one image was rejected and the limit on rejections was passed
├── StorageError                 1  a disk or bucket did not do what was asked
│   ├── ConflictError            1  another writer's bytes stand where ours should
│   └── AccessError              2  a permission or credential is missing, or the bucket does not exist
├── FormatError                  1  a shard, index or manifest cannot be read as what it claims to be
├── VerificationError            1  the dataset differs from its manifest
├── BuildError                   1  shards could not be built; a rerun goes on where it stopped
└── UndecidedError               3  the question cannot be answered with what is known
"""

DISTRIBUTION = "tpu-dataprep"
"""Name under which pip installs this project. `dataprep`, the name to import, is another project's on the index."""


class DataprepError(Exception):
    """Base of all expected errors; the text is one line: what was got, what was expected, the next step."""

    exit_code = 1


class UsageError(DataprepError):
    exit_code = 2


class SourceError(DataprepError):
    exit_code = 2


class ImageError(DataprepError):
    exit_code = 1


class StorageError(DataprepError):
    exit_code = 1


class ConflictError(StorageError):
    exit_code = 1


class AccessError(StorageError):
    exit_code = 2


class FormatError(DataprepError):
    exit_code = 1


class VerificationError(DataprepError):
    exit_code = 1


class BuildError(DataprepError):
    exit_code = 1


class UndecidedError(DataprepError):
    exit_code = 3


def install_hint(extra: str) -> str:
    """Tell how to install the packages of an extra of this project: `pip install 'tpu-dataprep[laion]'`."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
