"""The files of a user's own table: which are tables, and of which splits they are by their names."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import PurePosixPath

from dataprep.errors import SourceError, UsageError
from dataprep.messages import shell_words
from dataprep.sources.archives import refuse_pointer
from dataprep.sources.base import SPLITS
from dataprep.sources.folders import MAX_DEPTH, folder_files, tree_files
from dataprep.sources.image_tables import ImageTable
from dataprep.sources.keys import IMAGE_SUFFIXES, Problems, is_hidden
from dataprep.sources.tables import TABLES, is_table
from dataprep.sources.unpacked import PARQUET
from dataprep.storage.base import Storage

SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""Split by a word in the name of a table or of its folder, in lower case, as on the Hugging Face Hub."""
_LISTED = 10_000
"""Maximum number of files by whose names `other_data` judges."""
_NO_LETTERS = re.compile(r"[^a-z]+")


def tables_by_split(root: Storage, only: str, notes: list[str]) -> dict[str, list[ImageTable]]:
    """Find tables, and sort them into splits by their names; all into train if no name has the word of a split.

    Args:
        root: The source.
        only: Name of the only table, or folder of tables, to read; empty for all.
        notes: Messages for the user are appended here.

    Raises:
        SourceError: There is no table, or they are of different kinds, or of no split where others are of one.
    """
    tables = _tables(root, only, notes)
    for table in tables:
        refuse_pointer(root, table.name, table.num_bytes)
    suffixes = sorted({PurePosixPath(table.name).suffix.lower() for table in tables})
    if len(suffixes) > 1:
        raise SourceError(
            f"{root.url}: tables of different kinds, {' and '.join(suffixes)}; expected one: name the table, or the "
            f"folder of tables, to build with --table, such as --table {shell_words(tables[0].name)}"
        )
    splits = {table.name: _splits_of(table.name) for table in tables}
    if not any(splits.values()):
        return {"train": tables}
    found: dict[str, list[ImageTable]] = {}
    problems = Problems(root.url)
    for table in tables:
        if len(splits[table.name]) != 1:
            which = " and ".join(sorted(splits[table.name])) or "none"
            problems.add(
                SourceError(
                    f"{table.url}: its name says {which} of the splits train, val and test, where other tables name "
                    "one; rename it, or name the table, or the folder of tables, to build with --table"
                )
            )
            continue
        (split,) = splits[table.name]
        found.setdefault(split, []).append(table)
    problems.refuse()
    return {split: found[split] for split in SPLITS if split in found}


def _splits_of(name: str) -> set[str]:
    """Return the splits that a table's name and its folders name."""
    words = _NO_LETTERS.split(PurePosixPath(name).with_suffix("").as_posix().lower())
    return {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}


def _tables(root: Storage, only: str, notes: list[str]) -> list[ImageTable]:
    info = root.stat(only) if only else None
    if info is not None:
        if not is_table(only):
            raise UsageError(f"{root.url_of(only)} is no table by its name; expected one of {', '.join(TABLES)}")
        return [ImageTable(root, only, info.num_bytes)]
    odd: Counter[str] = Counter()

    def is_odd(name: str) -> bool:
        odd["hidden or of the system" if is_hidden((name,)) else _suffix(name)] += not is_table(name)
        return not is_table(name)

    files = folder_files(root, only, depth=MAX_DEPTH) if only else tree_files(root, is_odd)
    prefix = (only,) if only else ()
    tables = [
        ImageTable(root, "/".join((*prefix, *file.parts)), file.num_bytes) for file in files if is_table(file.parts[-1])
    ]
    others = odd + Counter(_suffix(file.parts[-1]) for file in files if not is_table(file.parts[-1]))
    if not tables:
        if other := "" if only else other_data(root):
            raise SourceError(f"{root.url}: no table: {other}")
        where, known = root.url_of(only) if only else root.url, _counts(others.most_common(5))
        raise SourceError(
            f"{where}: no table (found {known or 'no file'}); expected one of {', '.join(TABLES)}: check --source"
            + (f", or build the pictures with: dataprep build folder --source {shell_words(root.url)}" if known else "")
        )
    if passed := _counts((suffix, others[suffix]) for suffix in sorted(others) if suffix[1:] not in IMAGE_SUFFIXES):
        notes.append(f"passed over, because they are not tables: {passed}")
    return tables


def other_data(root: Storage) -> str:
    """Return what lies in a source in which nothing was found that is read, and the command that reads it; empty if
    that is not known."""
    names = [info.name for info in islice(root.list(), _LISTED)]
    kinds = {_suffix(name) for name in names}
    saved = [name for name in names if f"/{name}".endswith("/state.json")]
    if saved and ".arrow" in kinds:
        folder = (
            root.url if {"state.json", "dataset_dict.json"} & set(names) else root.url_of(saved[0].rpartition("/")[0])
        )
        name, quoted = folder.rstrip("/").rpartition("/")[2], json.dumps(folder, ensure_ascii=False)
        if "dataset_dict.json" in names:
            code = f'[data.to_parquet(f"{{split}}.parquet") for split, data in load_from_disk({quoted}).items()]'
            where, table = "in an empty folder with", "."
        else:
            where, table = "with", f"{name}.parquet"
            code = f"load_from_disk({quoted}).to_parquet({json.dumps(table, ensure_ascii=False)})"
        code = shell_words("python", "-c", f"from datasets import load_from_disk; {code}")
        return (
            f"what save_to_disk of datasets wrote is not read; write parquet files {where}: {code}; then: "
            f"dataprep build table --source {shell_words(table)}"
        )
    if ".mds" in kinds:
        return (
            "shards of MosaicML's streaming (.mds) are not read; write their rows as parquet for dataprep build table"
        )
    if PARQUET in kinds:
        return f"tables are built with: dataprep build table --source {shell_words(root.url)}"
    return ""


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower() or "without suffix"


def _counts(found: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count:,} {suffix}" for suffix, count in found)


def stems(tables: Sequence[ImageTable]) -> dict[str, str]:
    """Return a short name for each table by its name: without suffix and without the folders that hold all."""
    paths = {table.name: PurePosixPath(table.name).with_suffix("") for table in tables}
    folders = [path.parts[:-1] for path in paths.values()]
    depth = 0
    while depth < min(map(len, folders)) and len({parts[depth] for parts in folders}) == 1:
        depth += 1
    return {name: "/".join(path.parts[depth:]) for name, path in paths.items()}
