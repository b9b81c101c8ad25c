"""LAION's tables of URLs: the meaning of their columns, and the division of their rows into shards.

LAION-400M has URL, TEXT, HEIGHT, WIDTH, SAMPLE_ID, LICENSE, NSFW and similarity; Re-LAION url, caption, key, hash,
punsafe, pwatermark and the original sizes. A shard is a fixed number of rows of one file, in the table's order, as in
img2dataset: the last shard of each file is shorter, and shard numbers continue from file to file in the order of the
files' names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

from dataprep.dataset.records import Enumeration
from dataprep.errors import SourceError, UsageError
from dataprep.messages import shell_words, shown
from dataprep.sources.archives import Progress
from dataprep.sources.base import UNSTATED, NamedDataset, OwnData, SplitFacts, SplitRequest
from dataprep.sources.tables import Column, Kind, TableFile, Value, is_table, measure_table, read_part
from dataprep.storage import Storage, open_originals

DEFAULT_ROWS_PER_SHARD = 10_000
SHARD_DIGITS = 5
"""Minimum number of digits of a shard's number in names and keys."""
NAMED_DESCRIPTION = "Images fetched from a table of URLs, with their captions and the table's columns."
"""Description of a table that the user gave a name."""
LAION_COLUMNS = (frozenset({"URL", "TEXT", "LICENSE", "similarity"}), frozenset({"hash", "punsafe", "pwatermark"}))
"""Columns that only LAION's tables have: LAION-400M and the first LAION-5B; LAION-5B with scores, and Re-LAION."""
_HIDDEN = re.compile(r"(?:^|/)[._]")
SPLIT = "train"


class Role(NamedTuple):
    """Meaning of a column, e.g. `url`: the names and the type that it may have."""

    aliases: tuple[str, ...]
    """Names that a column of this role may have, ignoring case; the first that exists is used."""
    kind: Kind


ROLES: Mapping[str, Role] = {
    "url": Role(("url", "image_url"), "string"),
    "caption": Role(("caption", "text", "txt"), "string"),
    "width": Role(("width", "original_width"), "int"),
    "height": Role(("height", "original_height"), "int"),
    "similarity": Role(("similarity",), "float"),
    "nsfw": Role(("nsfw",), "string"),
    "punsafe": Role(("punsafe",), "float"),
    "pwatermark": Role(("pwatermark",), "float"),
    "language": Role(("language", "lang"), "string"),
    "md5": Role(("md5",), "string"),
    "sha256": Role(("sha256",), "string"),
}
"""Roles of columns. LAION's column `hash` has no role: it is a hash of URL and caption and cannot verify an image, so
it is copied like any other column."""
RENAMED = frozenset({"url", "caption"})
"""Roles whose column is written under the role's name instead of the column's name."""


@dataclass(frozen=True, kw_only=True)
class LaionDataset(NamedDataset):
    """Facts about a URL table, for the manifest and its readers. Its images are downloaded, so it lists no references.

    If the user gives no name, the columns decide whether the table is LAION's.
    """

    recipe: ClassVar[str] = "web"

    def described_by(self, own: OwnData) -> Self:
        """Return the facts about a table with the name, the licence and the origin that the user stated."""
        return replace(super().described_by(own), description=NAMED_DESCRIPTION, citation="")

    def classes(self, root: Storage, *, allow_partial: bool) -> tuple[str, ...]:
        return ()

    def _find(self, root: Storage, wanted: SplitRequest) -> Enumeration:
        raise UsageError("laion is a table of URLs and has no images to list; build it with dataprep build laion")


LAION = LaionDataset(
    name="laion",
    description="Images fetched from a LAION table of URLs, with their captions and the table's columns.",
    citation="Schuhmann et al., LAION-400M (arXiv:2111.02114) and LAION-5B (NeurIPS 2022); Re-LAION-5B, 2024.",
    licence="The table: CC BY 4.0. Every image: its own owner's; the table's LICENSE column names some.",
    origin="https://laion.ai",
    facts={SPLIT: SplitFacts(samples=None)},
    default_splits=(SPLIT,),
)
UNNAMED = replace(LAION, description=NAMED_DESCRIPTION, citation="", licence=UNSTATED, origin=UNSTATED)
"""Facts about a table without a name whose columns are not LAION's."""


class Row(NamedTuple):
    key: str
    roles: dict[str, Value]
    carried: tuple[Value, ...]
    """The row's values in the columns that `LaionTables.carried` lists, in that order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaionTables:
    """The measured tables of a build, as its plan stores them: a description without rows."""

    files: tuple[TableFile, ...]
    columns: dict[str, str]
    rows_per_shard: int

    @property
    def is_laion(self) -> bool:
        """Whether the columns are LAION's."""
        return any(columns <= {column.name for column in self.files[0].columns} for columns in LAION_COLUMNS)

    def facts(self, own: OwnData | None) -> LaionDataset:
        """Return the facts about the tables: the user's statements, or LAION's facts if the tables are LAION's."""
        if own is not None:
            return LAION.described_by(own)
        return LAION if self.is_laion else UNNAMED

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def num_shards(self) -> int:
        return sum(file.parts for file in self.files)

    @property
    def shard_digits(self) -> int:
        """Digits of a shard's number in keys and file names, as in TFDS; img2dataset's `oom_shard_count`."""
        return max(SHARD_DIGITS, len(str(self.num_shards)))

    @property
    def shard_rows(self) -> tuple[int, ...]:
        return tuple(file.rows_of(part) for file in self.files for part in range(file.parts))

    @property
    def carried(self) -> tuple[Column, ...]:
        """Columns that are copied unchanged, next to url and caption."""
        renamed = {self.columns[role] for role in RENAMED if role in self.columns}
        kinds = {name: ROLES[role].kind for role, name in self.columns.items()}
        return tuple(
            Column(column.name, kinds.get(column.name, column.kind))
            for column in self.files[0].columns
            if column.name not in renamed
        )

    def locate(self, index: int) -> tuple[TableFile, int]:
        """Return the file of a shard, and the shard's position among the parts of the file."""
        part = index
        for file in self.files:
            if part < file.parts:
                return file, part
            part -= file.parts
        raise UsageError(f"shard {index} past the end: the tables have {self.num_shards:,} shards")

    def document(self) -> dict[str, object]:
        return asdict(self)


def open_tables(urls: Sequence[str]) -> tuple[Storage, list[str]]:
    """Return the storage and the names of the tables that `source` names: files, or one folder of them. Raises
    UsageError if no URL is given, or the files are in several folders, and SourceError if there is no table."""
    places = [_split(url) for url in urls]
    roots = sorted({root for root, _ in places})
    if len(roots) != 1:
        where = f"tables in {' and '.join(roots)}" if roots else "no table"
        raise UsageError(f"`source` names {where}; expected one folder, or files of one")
    storage = open_originals(roots[0])
    names = list(dict.fromkeys(name for _, name in places))
    return storage, names if all(names) else find_tables(storage)


def find_tables(storage: Storage) -> list[str]:
    """List the tables in a folder or below a prefix, sorted by name. Raises SourceError if there is none."""
    # Spark, pandas and file systems leave files whose names begin with . or _
    names = sorted(info.name for info in storage.list() if is_table(info.name) and not _HIDDEN.search(info.name))
    if not names:
        raise SourceError(f"{storage.url}: no table (.parquet, .csv, .tsv, .jsonl) found; check `source`")
    return names


def measure_tables(
    storage: Storage,
    names: Sequence[str],
    *,
    rows_per_shard: int = DEFAULT_ROWS_PER_SHARD,
    overrides: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> LaionTables:
    """Measure tables for a plan: parquet by the footer, text files by one pass over them. Raises SourceError if a file
    is damaged, or its columns differ from the first file's, and UsageError if a column is missing or ambiguous, or an
    override names an unknown role or column.

    Args:
        rows_per_shard: Rows of each shard; the last shard of a file may have fewer.
        overrides: Column name by role, for columns without one of the role's aliases (`column` url=LINK).
    """
    if rows_per_shard < 1:
        raise UsageError(f"`rows_per_shard` must be 1 or more, got {rows_per_shard}")
    files = [measure_table(storage, name, rows_per_shard, progress) for name in names]
    first = files[0]
    for file in files[1:]:
        if file.columns != first.columns:
            raise SourceError(_other_columns(storage, first, file))
    columns = roles_of([column.name for column in first.columns], overrides or {})
    kinds = {column.name: column.kind for column in first.columns}
    if kinds[columns["url"]] != "string":
        raise UsageError(f"{storage.url_of(first.name)}: column {columns['url']} holds numbers, expected URLs")
    return LaionTables(files=tuple(files), columns=columns, rows_per_shard=rows_per_shard)


def roles_of(names: Sequence[str], overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each role; `overrides` has columns without one of the role's aliases. Raises UsageError if
    there is no header or no column of URLs, two columns differ only in case, or an override names an unknown role or
    column."""
    if row := next((name for name in names if name.lower().startswith(("http://", "https://"))), None):
        raise UsageError(
            f"the first line has a URL where the name of a column is expected: {shown(row)}; add a first line that "
            "names the columns, such as url,caption"
        )
    for role, name in overrides.items():
        if role not in ROLES:
            raise UsageError(f"`column` {role}={name}: expected one of {', '.join(ROLES)} before the =")
        if name not in names:
            raise UsageError(f"`column` {role}={name}: the table has {', '.join(names)}")
    found = dict(overrides)
    for role, (aliases, _) in ROLES.items():
        if role in found:
            continue
        for alias in aliases:
            same = [name for name in names if name.lower() == alias]
            if len(same) > 1:
                raise UsageError(
                    f"the columns {' and '.join(same)} both may be {role}; choose one with `column` "
                    f"{shell_words(role)}={same[0]}"
                )
            if same:
                found[role] = same[0]
                break
    if "url" not in found:
        parted = "; separate columns with commas, in .tsv files with tabs" if any(";" in name for name in names) else ""
        raise UsageError(f"no column of URLs among {', '.join(names)}; name it with `column` url=NAME{parted}")
    return {role: found[role] for role in ROLES if role in found}


def read_shard_rows(storage: Storage, tables: LaionTables, index: int) -> list[Row]:
    """Read the rows of one shard, in the table's order. Raises SourceError."""
    file, part = tables.locate(index)
    places = {column.name: at for at, column in enumerate(file.columns)}
    roles = [(role, places[name], _TYPED[ROLES[role].kind]) for role, name in tables.columns.items()]
    carried = [(places[column.name], _TYPED[column.kind]) for column in tables.carried]
    return [
        Row(
            key_of(index, number, tables),
            {role: typed(values[at]) for role, at, typed in roles},
            tuple(typed(values[at]) for at, typed in carried),
        )
        for number, values in enumerate(read_part(storage, file, part))
    ]


def key_of(shard: int, row: int, tables: LaionTables) -> str:
    """Return img2dataset's key: the shard's number, then the row's, with as many digits as the largest row number
    needs. E.g. `000120007` is row 7 of shard 12, if shards have 10,000 rows.
    """
    digits = math.ceil(math.log10(tables.rows_per_shard))
    return f"{shard:0{tables.shard_digits}d}" + (f"{row:0{digits}d}" if digits else "")


def _split(url: str) -> tuple[str, str]:
    """Split a URL into folder and file name; a folder has no file name."""
    if not is_table(url):
        return url.rstrip("/") or "/", ""
    folder, slash, name = url.rpartition("/")
    return (folder or slash or "."), name


def _other_columns(storage: Storage, first: TableFile, other: TableFile) -> str:
    here, there = ([f"{name} {kind}" for name, kind in file.columns] for file in (first, other))
    odd = next((column for column in there if column not in here), None) or "another order of columns"
    return (
        f"{storage.url_of(other.name)} has {odd}, {first.name} has {', '.join(here)}; expected the same columns in all "
        "files: build them one by one"
    )


def _number(text: Any, cast: type[int] | type[float]) -> int | float | None:
    """Read a number from text or another type; None if it is not a finite number."""
    if text is None or isinstance(text, cast):
        return text
    try:
        number = float(text)
    except (TypeError, ValueError, OverflowError):
        return None
    if cast is int and not -(2.0**63) <= number < 2.0**63:
        return None
    return cast(number) if math.isfinite(number) else None


_TYPED: dict[Kind, Callable[[Any], Any]] = {
    "string": lambda value: None if value is None else str(value),
    "int": lambda value: _number(value, int),
    "float": lambda value: _number(value, float),
}
