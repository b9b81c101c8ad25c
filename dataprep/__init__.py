"""Training data from original image archives: built, verified, described for loaders, and copied near their readers.

    import dataprep

    dataset = dataprep.build_folder(source="pictures", output="shards", format="webdataset")
    dataprep.verify("shards", deep=True)                     # -> Report
    dataprep.convert("shards", output="small", format="tfrecord", resize=256)
    loader = dataprep.open_loader("shards", batch_size=128)

build_folder, build_table  Build one's own pictures, or a table of them.
build_coco, build_laion  Build COCO with its annotations; fetch and build a table of URLs.
build_dataset    Build ImageNet or another published dataset from its archives.
build_custom     Build with one's own dataset class.
build            Build what a name or a class says, for programs that choose it at run time.
open             Open a finished dataset: splits, samples, classes, features, licence.
verify           Compare every byte of a dataset with its manifest.
convert          Make a dataset of another: another format, smaller images, other shards.
adopt            Index data that other tools wrote, so that the loaders read them as they are.
inspect          Summarise a finished dataset: counts, sizes, classes, duplicates, rejections.
card             Write the cards of a dataset.
replicate        Copy a dataset to other regions, near its readers.
check_region     Calculate what reading a bucket costs from where it is read.
plan_input       Calculate whether the hosts of a TPU can feed it.
remove           Remove samples from storage, for good.
retry_failed     Fetch failed rows of a table of URLs again.
recheck          Ask again whether images from a table of URLs may be used.
select           Choose samples as a view, `URL@NAME`.
map              Add columns: a value for each sample, made by a function or joined from a table.
open_loader      Open a loader; loaders/ has the others.
Columns, ColumnType, Samples  What a function for map takes and returns, and the batch that it gets.
Dataset, Report, Summary, Progress  Results of these functions, and the argument of their callback `progress`.
DataprepError    Base of all errors; UsageError and the others are in dataprep.errors.

Each function has the options of the command of its name. Messages go to the logger `dataprep`. docs/architecture.md
lists the rooms of this package.
"""

# Imports nothing when it runs: `python -m dataprep` comes here before it has left the current folder, whose modules,
# such as a typing.py in a downloaded dataset, must not be imported.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dataprep.column_functions import Columns, Samples
    from dataprep.commands.adopt import adopt
    from dataprep.commands.build import build, build_coco, build_custom, build_dataset, build_folder, build_table
    from dataprep.commands.build_laion import build_laion
    from dataprep.commands.card import card
    from dataprep.commands.check_region import check_region
    from dataprep.commands.convert import convert
    from dataprep.commands.inspect import inspect
    from dataprep.commands.map import map
    from dataprep.commands.plan_input import plan_input
    from dataprep.commands.progress import Progress
    from dataprep.commands.recheck import recheck
    from dataprep.commands.remove import remove
    from dataprep.commands.replicate import replicate
    from dataprep.commands.retry_failed import retry_failed
    from dataprep.commands.select import select
    from dataprep.commands.verify import verify
    from dataprep.dataset.column_files import ColumnType
    from dataprep.dataset.opened import Dataset
    from dataprep.dataset.opened import open_dataset as open
    from dataprep.errors import DataprepError
    from dataprep.inspection.inspect import Summary
    from dataprep.verification.run import Report
    from loaders.loader import open_loader

__version__ = "0.3.0"
__all__ = [
    "ColumnType",
    "Columns",
    "DataprepError",
    "Dataset",
    "Progress",
    "Report",
    "Samples",
    "Summary",
    "adopt",
    "build",
    "build_coco",
    "build_custom",
    "build_dataset",
    "build_folder",
    "build_laion",
    "build_table",
    "card",
    "check_region",
    "convert",
    "inspect",
    "map",
    "open",
    "open_loader",
    "plan_input",
    "recheck",
    "remove",
    "replicate",
    "retry_failed",
    "select",
    "verify",
]
_ELSEWHERE = {
    "ColumnType": "dataprep.dataset.column_files",
    "Columns": "dataprep.column_functions",
    "DataprepError": "dataprep.errors",
    "Dataset": "dataprep.dataset.opened",
    "Progress": "dataprep.commands.progress",
    "Report": "dataprep.verification.run",
    "Samples": "dataprep.column_functions",
    "Summary": "dataprep.inspection.inspect",
    "build_coco": "dataprep.commands.build",
    "build_custom": "dataprep.commands.build",
    "build_dataset": "dataprep.commands.build",
    "build_folder": "dataprep.commands.build",
    "build_table": "dataprep.commands.build",
    "open": "dataprep.dataset.opened:open_dataset",
    "open_loader": "loaders.loader",
}
"""Modules of the public names; all others are functions, each in the module of the command of its name."""


def __getattr__(name: str) -> "Any":
    """Import a public name when it is first used, so that `import dataprep` is cheap."""
    if name not in __all__:
        raise AttributeError(f"module 'dataprep' has no attribute {name!r}")
    from importlib import import_module

    module, _, attribute = _ELSEWHERE.get(name, f"dataprep.commands.{name}").partition(":")
    return getattr(import_module(module), attribute or name)


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
