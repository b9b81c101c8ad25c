"""Makes views: evaluates conditions, lists, duplicates and draws over the samples of a dataset.

    index, annotations ─▶ reasons of each shard (pure) ─▶ [duplicates of what is left] ─▶ views/<name>/ ─▶ view.json

Everything is read shard by shard; only duplicates need all samples at once. DuckDB spills these to disk, and memory
holds the hashes of near ones, some 90 bytes a sample. Reasons do not depend on workers or on the order in which samples
are looked at.

Conditions are SQL of anyone: DuckDB evaluates them over one table, without files, network, extensions, other tables or
subqueries, and its settings are locked.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import combinations
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.arrays import NDArray, np, pa
from dataprep.builder.finished import readable_manifest
from dataprep.dataset import views
from dataprep.dataset.adopted import open_named_data
from dataprep.dataset.column_files import column_names, read_column, read_values
from dataprep.dataset.columns import from_numpy, nulls, numbers_or_zero, strings, table_of, to_numpy
from dataprep.dataset.hashes import name_hashes
from dataprep.dataset.index import open_index, spool_row_groups
from dataprep.dataset.records import FileEntry, Manifest, SampleRef, SplitManifest, class_name_of
from dataprep.errors import ConflictError, UsageError, needing
from dataprep.formats import FORMATS
from dataprep.messages import counted, quoted, there_are
from dataprep.sources.existing import Existing, SplitReader, stored_fields
from dataprep.storage import Storage, open_storage
from dataprep.storage.base import read_ahead, read_bounded

if TYPE_CHECKING:
    import duckdb

EXCEPT, DUPLICATE, NEAR, DRAWN = "except", "duplicate", "near duplicate", "sample"
"""Reasons of samples that a list names, that are a copy of another or nearly, or that were not drawn."""
_SAID = {EXCEPT: "listed", DUPLICATE: "duplicate", NEAR: "near duplicate", DRAWN: "not drawn"}
"""What people read for these reasons; any other one is a condition or view that a sample did not meet."""
EXACT = "exact"
MAX_BITS = 16
"""Most bits in which hashes of near duplicates may differ: unrelated pictures differ in some 32 of 64."""
_HASHES = re.compile(r"(?P<column>[^<>=]*[^<>= ]) *<= *(?P<bits>[0-9]{1,2})")
MAX_MEMORY = "1GiB"
"""Memory of DuckDB, which spills what needs more."""
MAX_EXCEPT_BYTES = 2**30
LONGEST_CONDITION = 10_000
_LIMIT_S = 600.0
_FETCHED_ROWS = 1 << 12
SAME_IMAGE = """
SELECT place FROM prints SEMI JOIN (SELECT size, crc FROM prints GROUP BY ALL HAVING count(*) > 1) USING (size, crc)
ORDER BY place
"""
"""Samples whose image has the size and CRC32C of another one."""
COPIES = """
SELECT place FROM digests QUALIFY row_number() OVER (PARTITION BY digest ORDER BY key, place) > 1 ORDER BY place
"""
"""Samples whose image has the bytes of one before it by key."""
_COLUMNS = ("key", "split", "label", "class_name", "height", "width", "image_bytes")
"""Columns of every sample; a sample's stored fields are columns, too."""
NAMING = ("key", "url", "sha256", "md5")
"""Columns whose values a list may name."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A view that was made, or would be. It shows itself in a terminal."""

    url: str
    """Address of the view, for `open_loader` and the other functions."""
    samples: dict[str, int]
    """Samples that it keeps, by split."""
    left_out: dict[str, dict[str, int]]
    """Samples that are left out, by split and reason."""
    unknown: tuple[str, ...] = ()
    """Lines of the lists that name no sample."""

    def __str__(self) -> str:
        kept, left_out = sum(self.samples.values()), Counter[str]()
        for reasons in self.left_out.values():
            left_out.update(reasons)
        why = ", ".join(f"{count:,} {_SAID.get(reason, f'not {reason}')}" for reason, count in left_out.items())
        of = counted(kept + left_out.total(), "sample")
        return f"{views.address(self.url)[1]} keeps {kept:,} of {of}" + (f"; left out: {why}" if why else "")


def select(
    url: str,
    name: str,
    choice: views.Choice,
    *,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda samples: None,
) -> Selection:
    """Make a view of a finished dataset.

    Args:
        overwrite: Replace a view of this name that keeps something else.
        dry_run: Count only, and write nothing.
        progress: Called with each number of samples that were looked at; with `dedup` all are looked at twice.

    Raises UsageError if there is no dataset, a condition or list is wrong, or another view has this name.
    """
    storage = open_storage(url)
    manifest = readable_manifest(storage)
    existing = views.find_view(storage, views.check_name(name))
    had = (existing[0].plan_hash, existing[0].choice) if existing else None
    if had not in (None, (manifest.plan_hash, choice)) and not overwrite and not dry_run:
        raise UsageError(f"{storage.url}: a view {name} that keeps something else exists; `overwrite` replaces it")
    base = views.read_view(storage, manifest, choice.of) if choice.of else None
    with ExitStack() as opened:
        work = opened.enter_context(_Selection(storage, manifest, choice, base, progress, opened))
        splits = [work.split(split, name, dry_run=dry_run) for split in manifest.splits]
        work.publish()
    view = views.View(
        version=views.VIEW_VERSION,
        name=name,
        plan_hash=manifest.plan_hash,
        revision=manifest.revision,
        choice=choice,
        splits=tuple(splits),
    )
    if not dry_run:
        _publish(storage, view, existing is not None)
    return Selection(
        url=f"{storage.url}@{name}",
        samples={split.name: sum(split.kept) for split in splits},
        left_out={split.name: split.left_out for split in splits},
        unknown=work.listed.unknown,
    )


def _publish(storage: Storage, view: views.View, replaces: bool) -> None:
    """Put a view's description in place; the replaced one and its files stay, for runs that continue from them."""
    file = views.view_file(view.name, views.VIEW_JSON)
    data = json.dumps(asdict(view), indent=1).encode()
    old = storage.read(file) if replaces else None
    if old is not None and old != data:
        storage.create(views.earlier_file(view.name, hashlib.sha256(old).hexdigest()), old)
    if old != data and not storage.replace(file, data, old):
        raise ConflictError(f"{storage.url_of(file)}: another process has made this view meanwhile; run it again")
    storage.remove_stale_spools()


class Condition:
    """A condition over the columns of samples: SQL without tables. Raises UsageError if it is not one expression, or
    has a subquery."""

    def __init__(self, text: str, engine: Engine) -> None:
        self.text = text
        if len(text) > LONGEST_CONDITION:
            raise self.fault(f"{len(text):,} characters, expected {LONGEST_CONDITION:,} at most")
        parsed = json.loads(engine.rows("SELECT json_serialize_sql(?)", f"SELECT (\n{text}\n)")[0][0])
        if parsed["error"]:
            raise self.fault(f"{parsed['error_message']} at character {int(parsed.get('position', 9)) - 8}")
        node = parsed["statements"][0]["node"] if len(parsed["statements"]) == 1 else {}
        if node.get("type") != "SELECT_NODE" or len(node["select_list"]) != 1 or node["from_table"]["type"] != "EMPTY":
            raise self.fault("expected one expression such as width >= 256")
        self.columns = frozenset(self._names(node["select_list"][0]))
        """Names of the columns that it needs."""

    def fault(self, what: str) -> UsageError:
        """Return the error of this condition."""
        return UsageError(f"`where` {quoted(self.text)}: {what}")

    def _names(self, node: Any) -> Iterator[str]:
        if isinstance(node, list):
            for each in node:
                yield from self._names(each)
        elif isinstance(node, dict):
            if node.get("class") in ("SUBQUERY", "WINDOW", "STAR", "PARAMETER"):
                raise self.fault(f"a {node['class'].lower()} cannot be part of a condition on one sample")
            if node.get("class") == "COLUMN_REF":
                yield node["column_names"][0]
            yield from self._names(list(node.values()))


class Engine:
    """DuckDB with nothing but the tables that it is given."""

    def __init__(self, spill: str) -> None:
        with needing("select", "dataprep select"):
            import duckdb

        self._error: type[Exception] = duckdb.Error
        self._connection: duckdb.DuckDBPyConnection = duckdb.connect(
            config={
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "allow_community_extensions": "false",
                "python_enable_replacements": "false",
                "memory_limit": MAX_MEMORY,
                "temp_directory": spill,
            }
        )
        for setting in ("enable_external_access=false", "lock_configuration=true"):
            self._connection.execute(f"SET {setting}")

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement of ours."""
        found: list[tuple[Any, ...]] = self._connection.execute(statement, list(values)).fetchall()
        return found

    def insert(self, name: str, rows: pa.Table) -> None:
        """Append rows to a table, which the first ones make."""
        self._connection.register("added", rows)
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {name} AS FROM added LIMIT 0")
        self._connection.execute(f"INSERT INTO {name} SELECT * FROM added")
        self._connection.unregister("added")

    def numbers(self, statement: str) -> NDArray[Any]:
        """Return the column of numbers that a statement of ours selects. Shape (rows,)."""
        (found,) = self._connection.execute(statement).fetchnumpy().values()
        return np.asarray(found)

    def each(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that a statement of ours selects; no other statement may run meanwhile."""
        found = self._connection.execute(statement)
        while rows := found.fetchmany(_FETCHED_ROWS):
            yield from rows

    def passed(self, condition: Condition, rows: pa.Table) -> NDArray[np.bool_]:
        """Return which rows fulfil a condition; null counts as false. Shape (rows,)."""
        self._connection.register("samples", rows)
        stop = threading.Timer(_LIMIT_S, self._connection.interrupt)
        stop.start()
        try:
            found = self._connection.execute(f"SELECT (\n{condition.text}\n) FROM samples")
            kind = str(found.description[0][1])
            if kind != "BOOLEAN":
                raise condition.fault(f"a value of type {kind}, expected a condition such as width >= 256")
            answers = found.fetchnumpy()
        except self._error as error:
            raise condition.fault(str(error).partition("\n\n")[0].replace("\n", " ")) from error
        finally:
            stop.cancel()
            self._connection.unregister("samples")
        (values,) = answers.values()
        if len(values) != rows.num_rows:
            raise condition.fault("expected a value for each sample, got one for all, or several")
        return np.ma.filled(values, False).astype(np.bool_)


class Listed:
    """The lines of lists, which have a key, URL or digest in each line, and which of them name a sample. Empty lines
    and those with # are left out. Raises UsageError if there is no such file, and FormatError if it is too large."""

    def __init__(self, urls: Iterable[str]) -> None:
        lines: set[str] = set()
        for url in urls:
            folder, _, name = url.rpartition("/")
            data = read_bounded(open_storage(folder or "."), name, MAX_EXCEPT_BYTES, advice="split it")
            if data is None:
                raise UsageError(f"{url}: not found; expected a file with a key, URL or digest in each line")
            lines.update(line.strip() for line in data.decode("utf-8", "replace").splitlines())
        self.lines = frozenset(line for line in lines if line and not line.startswith("#"))
        self.matched: set[str] = set()

    def named(self, rows: pa.Table, keys: Mapping[str, str] | None = None) -> NDArray[np.bool_]:
        """Return which samples, of rows with `Columns`, a line names by their key, URL or digest. Shape (rows,).
        `keys` are lines by other keys that they name."""
        found = np.zeros(rows.num_rows, np.bool_)
        for name in NAMING if self.lines else ():
            if name in rows.column_names:
                values = rows.column(name).to_pylist()
                if keys and name == "key":
                    values = [keys.get(value, value) for value in values]
                hits = [value in self.lines for value in values]
                self.matched.update(value for value, is_hit in zip(values, hits, strict=True) if is_hit)
                found |= np.array(hits, np.bool_)
        return found

    @property
    def unknown(self) -> tuple[str, ...]:
        """Lines that name no sample, sorted."""
        return tuple(sorted(self.lines - self.matched))


def drawn(keys: Iterable[str], share: float, seed: int) -> NDArray[np.bool_]:
    """Return which samples are drawn, by key and seed alone, so that no other sample matters. Shape (keys,)."""
    hashes = name_hashes(f"{seed}\0{key}" for key in keys)
    return hashes < np.uint64(min(int(share * 2**64), 2**64 - 1))


def _hashes(dedup: str) -> tuple[str, int]:
    """Return the column of hashes of near duplicates, and in how many bits they may differ."""
    found = _HASHES.fullmatch(dedup)
    if found is None or int(found["bits"]) > MAX_BITS:
        raise UsageError(
            f"`dedup` {quoted(dedup)}: expected {EXACT}, or a column of hashes and in how many bits they may differ, 0 "
            f"to {MAX_BITS}, such as phash<=4"
        )
    return found["column"], int(found["bits"])


def near_duplicates(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.bool_]:
    """Return which hashes differ in at most so many bits from one before them that is kept. Shape (hashes,).

    One after the other is kept or not. To find this without looking at each after the other, all pairs of near hashes
    are found. If these are too many, the first half is decided alone, and what is near it leaves the second half.
    """
    first = np.sort(np.unique(hashes, return_index=True)[1])
    near = np.ones(len(hashes), np.bool_)
    near[first[_apart(hashes[first], bits)]] = False
    return near


_MAX_PAIRS = 2**22
"""Near pairs in memory, 16 bytes each; or as many as there are hashes."""
_BLOCK = 2**15
"""Hashes that are compared in one step, so that they stay in a core's cache."""
MORE_BANDS = 6
"""Numbers of bands that are tried, from the number of bits on."""
_SORTING = 40
"""Pairs that are compared while one hash is sorted."""


def _apart(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.bool_]:
    """Return which hashes are kept; none is there twice. Shape (hashes,)."""
    kept, found, count = np.ones(len(hashes), np.bool_), [np.empty((2, 0), np.int64)], 0
    if not bits:
        return kept
    for pairs in _near_pairs(hashes, bits):
        found.append(pairs)
        count += pairs.shape[1]
        if count > max(_MAX_PAIRS, len(hashes)):
            break
    else:
        lower, higher = np.concatenate(found, axis=1)
        order = np.argsort(higher)
        for before, after in zip(lower[order].tolist(), higher[order].tolist(), strict=True):
            if kept[before]:
                kept[after] = False
        return kept
    found.clear()
    half = len(hashes) // 2
    kept[:half] = _apart(hashes[:half], bits)
    first = np.flatnonzero(kept[:half])
    both = np.concatenate([first, np.arange(half, len(hashes))])
    for lower, higher in _near_pairs(hashes[both], bits):
        kept[both[higher[(lower < len(first)) & (higher >= len(first))]]] = False
    rest = half + np.flatnonzero(kept[half:])
    kept[rest] = _apart(hashes[rest], bits)
    return kept


def _near_pairs(hashes: NDArray[np.uint64], bits: int) -> Iterator[NDArray[np.int64]]:
    """Yield the places of all pairs of hashes that differ in at most so many bits, each pair once. Shape (2, pairs),
    the lower place first.

    Of any m bands of bits, m - `bits` are equal, so hashes are sorted by each choice of so many bands, and compared
    with those after them that have the same: Norouzi et al., "Fast Search in Hamming Space with Multi-Index Hashing",
    CVPR 2012, with the m that takes the least time. With m = `bits`, that is all pairs.
    """
    bands = min(range(bits, bits + MORE_BANDS), key=partial(comparisons, len(hashes), bits))
    edges = [64 * band // bands for band in range(bands + 1)]
    order = np.argsort(hashes)
    values = hashes[order]
    for equal in combinations(range(bands), bands - bits):
        moves, stop = list[tuple[int, int, int]](), 64
        for band in (*equal, *sorted({*range(bands)} - {*equal})):
            width = edges[band + 1] - edges[band]
            stop -= width
            moves.append((width, edges[band], stop))
        back = [(width, stop, start) for width, start, stop in moves]
        differs = 2 ** (64 - sum(width for width, _, _ in moves[: len(equal)])) - 1
        # A pair belongs to the first choice whose bands it has.
        others = {*range(max(equal, default=0))} - {*equal}
        masks = [np.uint64(2 ** edges[band + 1] - 2 ** edges[band]) for band in others]
        here = _moved(values, moves)
        here.sort()
        for found in _near_in_order(here, bits, differs):
            both = _moved(found, back)
            for mask in masks:
                both = both[:, (both[0] ^ both[1]) & mask != 0]
            yield np.sort(order[np.searchsorted(values, both)], axis=0)


def comparisons(hashes: int, bits: int, bands: int) -> float:
    """Return the comparisons of two hashes that take as long as `_near_pairs` with a number of bands."""
    steps = hashes / 2 ** (64 * (bands - bits) / bands)  # each is compared with as many as have its bands
    return comb(bands, bits) * hashes * (steps + _SORTING)


def _moved(hashes: NDArray[np.uint64], moves: Iterable[tuple[int, int, int]]) -> NDArray[np.uint64]:
    """Return hashes with bits in other places. A move is the number of bits, the lowest bit, and its new place."""
    found = np.zeros_like(hashes)
    for width, start, stop in moves:
        found |= (hashes >> np.uint64(start) & np.uint64(2**width - 1)) << np.uint64(stop)
    return found


def _near_in_order(hashes: NDArray[np.uint64], bits: int, differs: int) -> Iterator[NDArray[np.uint64]]:
    """Yield pairs of sorted hashes, (2, pairs), that differ in at most so many bits, all of the lowest, `differs`."""
    for first in range(0, len(hashes), _BLOCK):
        mine = hashes[first : first + _BLOCK]
        for step in range(1, len(hashes) - first):
            theirs = hashes[first + step : first + step + _BLOCK]
            mine = mine[: len(theirs)]
            difference = mine ^ theirs
            alike = difference <= differs
            if not alike.any():
                break
            alike &= np.bitwise_count(difference) <= bits
            if alike.any():
                yield np.stack([mine[alike], theirs[alike]])


class _Selection(AbstractContextManager["_Selection"]):
    """One run over a dataset: what its splits have in common, and the duplicates among all of them."""

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        choice: views.Choice,
        base: views.OpenedView | None,
        progress: Callable[[int], None],
        opened: ExitStack,
    ) -> None:
        self._storage, self._manifest, self._choice, self._base = storage, manifest, choice, base
        self._data = open_named_data(storage, manifest)
        self._progress = progress
        self._opened, self._spools, self._writes = opened, dict[str, tuple[Path, str]](), False
        self.listed = Listed(choice.left_out)
        near = None if choice.dedup in ("", EXACT) else _hashes(choice.dedup)
        self._conditions = [Condition(text, self._engine) for text in choice.where]
        before = f"@{base.view.name}" if base else "@"
        self._texts = list(dict.fromkeys(["", before, *choice.where, EXCEPT, DRAWN, NEAR if near else DUPLICATE]))
        """Reasons; samples that are kept have number 0."""
        names = frozenset().union(*(condition.columns for condition in self._conditions))
        if self.listed.lines:
            names |= {*NAMING} & manifest.features.keys()
        names |= {near[0]} if near else set()
        self._columns = Columns(manifest, storage, self._data, names)
        first, self._firsts = 0, {split.name: np.empty(0, np.int64) for split in manifest.splits}
        """Place of each shard's first sample among the samples of all splits, by name; places break ties of keys."""
        for split in sorted(manifest.splits, key=lambda split: split.name):
            self._firsts[split.name] = np.cumsum([first, *(shard["samples"] for shard in split.shards)])
            first = int(self._firsts[split.name][-1])
        none = np.empty(0, np.int64)
        self._copies = self._found_near(*near) if near else self._found_copies() if choice.dedup else none

    def __exit__(self, *details: object) -> None:
        for spool, _ in self._spools.values():
            spool.unlink(missing_ok=True)
        if self._writes:
            self._storage.remove_stale_spools()

    @cached_property
    def _engine(self) -> Engine:
        return Engine(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="dataprep-select-")))

    def publish(self) -> None:
        """Put the files in place. Raises UsageError if a condition names a field that no sample has."""
        self._columns.check()
        for name, (spool, crc32c) in self._spools.items():
            self._storage.publish(spool, name, crc32c)

    def split(self, split: SplitManifest, name: str, *, dry_run: bool) -> views.ViewSplit:
        """Return the part of the view over one split, written unless this is a dry run."""
        kept: list[int] = []
        counts, of_classes = np.zeros(len(self._texts), np.int64), np.zeros(len(self._manifest.classes), np.int64)
        texts = [text or None for text in self._texts]

        def groups() -> Iterator[pa.Table]:
            for number, codes, table in self._codes(split):
                labels = numbers_or_zero(table.column("label"), np.int64)
                first = self._firsts[split.name][number]
                copies = slice(*np.searchsorted(self._copies, [first, first + len(codes)]))
                codes[self._copies[copies] - first] = len(texts) - 1
                found = np.bincount(codes, minlength=len(texts))
                kept.append(int(found[0]))
                counts[:] += found
                of_classes[:] += np.bincount(labels[(codes == 0) & (labels >= 0)], minlength=len(of_classes))
                yield table_of([[texts[code] for code in codes.tolist()]], views.view_schema())

        entry: FileEntry = {"file": "", "bytes": 0, "sha256": ""}
        if dry_run:
            for _ in groups():
                pass
        else:
            self._writes = True
            spool, digests = spool_row_groups(
                self._storage, views.view_file(name, split.name), groups(), views.view_schema()
            )
            file = views.split_file(name, split.name, digests.sha256)
            self._spools[file] = spool, digests.crc32c
            entry = {"file": file, "bytes": digests.num_bytes, "sha256": digests.sha256}
        out = {text: int(count) for text, count in zip(self._texts, counts, strict=True) if text and count}
        return views.ViewSplit(split.name, entry, tuple(kept), tuple(of_classes.tolist()), out)

    def _codes(self, split: SplitManifest) -> Iterator[tuple[int, NDArray[np.int64], pa.Table]]:
        """Yield the number of each shard, the reasons of its samples as numbers in `_texts`, and their columns; copies
        are not looked at."""
        index = open_index(self._storage, split, compare=True)
        for number, shard in enumerate(split.shards):
            rows = index.read_group(number)
            table = self._columns.table(split, number, rows)
            yield number, self._of_shard(split, number, table), table
            self._progress(shard["samples"])

    def _of_shard(self, split: SplitManifest, number: int, table: pa.Table) -> NDArray[np.int64]:
        codes = np.zeros(table.num_rows, np.int64)

        def leave_out(which: NDArray[np.bool_], text: str) -> None:
            codes[which & (codes == 0)] = self._texts.index(text)

        if self._base is not None:
            dropped = np.ones(table.num_rows, np.bool_)
            dropped[self._base.splits[split.name].numbers(number)] = False
            leave_out(dropped, f"@{self._base.view.name}")
        for condition in self._conditions:
            leave_out(~self._engine.passed(condition, table), condition.text)
        leave_out(self.listed.named(table), EXCEPT)
        if self._choice.sample < 1:
            leave_out(~drawn(table.column("key").to_pylist(), self._choice.sample, self._choice.seed), DRAWN)
        return codes

    def _found_copies(self) -> NDArray[np.int64]:
        """Return the places of copies, ascending: samples whose image has the bytes of one before it by key.

        DuckDB finds equal sizes and CRC32C; only these images are read, and compared by SHA-256.
        """
        engine = self._engine
        engine.rows("CREATE TABLE prints (place BIGINT, size BIGINT, crc BIGINT)")
        engine.rows("CREATE TABLE digests (place BIGINT, key VARCHAR, digest BLOB)")
        for split in self._manifest.splits:
            index = open_index(self._storage, split, compare=True)
            for number, codes, _ in self._codes(split):
                rows = index.read_group(number, ["image_bytes", "image_crc32c"])
                if rows.column("image_crc32c").null_count:
                    raise UsageError(
                        f"{self._storage.url}: the index of {split.name} has no checksums of images, and `dedup` needs "
                        "them; adopt the data again with `digest`"
                    )
                kept = np.flatnonzero(codes == 0)
                prints = {name: numbers_or_zero(rows.column(name), np.int64)[kept] for name in rows.column_names}
                engine.insert("prints", pa.table({"place": self._firsts[split.name][number] + kept, **prints}))
        alike = engine.numbers(SAME_IMAGE)
        for split in self._manifest.splits:
            firsts = self._firsts[split.name]
            cuts = np.searchsorted(alike, firsts)
            for number in np.flatnonzero(np.diff(cuts)).tolist():
                places = alike[cuts[number] : cuts[number + 1]]
                keys, digests = self._digests(split, number, places - firsts[number])
                engine.insert("digests", pa.table({"place": places, "key": keys, "digest": digests}))
        return engine.numbers(COPIES)

    def _found_near(self, name: str, bits: int) -> NDArray[np.int64]:
        """Return the places of near duplicates, ascending; see `near_duplicates`."""
        engine = self._engine
        engine.rows("CREATE TABLE hashes (place BIGINT, key VARCHAR, hash UBIGINT)")
        for split in self._manifest.splits:
            for number, codes, table in self._codes(split):
                found = table.column(name).combine_chunks()
                if found.type not in (pa.int64(), pa.uint64()):
                    raise UsageError(
                        f"`dedup`: {quoted(name)} has values of type {found.type}, expected hashes of 64 bits, as "
                        "`dataprep map` makes with the function phash"
                    )
                kept = np.flatnonzero((codes == 0) & ~nulls(found))
                places, keys = self._firsts[split.name][number] + kept, table.column("key").take(from_numpy(kept))
                hashes = to_numpy(found).view(np.uint64)[kept]
                engine.insert("hashes", pa.table({"place": places, "key": keys, "hash": hashes}))
        near = near_duplicates(engine.numbers("SELECT hash FROM hashes ORDER BY key, place"), bits)
        return np.sort(engine.numbers("SELECT place FROM hashes ORDER BY key, place")[near])

    def _digests(self, split: SplitManifest, number: int, samples: NDArray[np.int64]) -> tuple[list[str], list[bytes]]:
        """Return the keys and SHA-256 of images of one shard."""
        reader = SplitReader(Existing(self._manifest, self._storage, self._data), self._data, split.name)
        rows = open_index(self._storage, split, compare=True).read_group(number)
        refs = list(reader.shard_refs(number, rows.take(from_numpy(samples))))

        def digest(ref: SampleRef) -> bytes:
            return hashlib.sha256(self._data.read_range(ref.source, ref.offset, ref.num_bytes)).digest()

        return [ref.key for ref in refs], list(read_ahead(digest, refs, self._data.reads_in_flight))


class Columns:
    """The columns that conditions see: the index's, the class, and the stored fields and columns that they name."""

    def __init__(self, manifest: Manifest, index: Storage, data: Storage, names: Iterable[str]) -> None:
        self._manifest, self._index, self._data = manifest, index, data
        wanted = set(names) - {*_COLUMNS}
        made = wanted - manifest.features.keys() & set(column_names(index)) if wanted else ()
        self._made = {name: read_column(index, manifest, name) for name in sorted(made)}
        self._fields = tuple(sorted(wanted - self._made.keys()))
        self._unseen = set(self._fields)
        if manifest.features or FORMATS[manifest.format].one_file_per_image:
            self._unseen -= manifest.features.keys()
            self.check()

    def check(self) -> None:
        """Raise UsageError if no sample that was read has a field of one of the names."""
        known = (*_COLUMNS, *self._manifest.features, *column_names(self._index))
        for name in sorted(self._unseen):
            raise UsageError(f"`where` or `dedup`: no column {quoted(name)}{there_are(name, known)}")

    def table(self, split: SplitManifest, number: int, rows: pa.Table) -> pa.Table:
        """Return the columns of a shard's samples, from their rows of the index."""
        count, labels = rows.num_rows, rows.column("label").to_pylist()
        names = (name for name in _COLUMNS if name in rows.column_names)
        columns: dict[str, pa.Array | pa.ChunkedArray] = {name: rows.column(name) for name in names}
        columns["split"] = strings([split.name] * count)
        columns["class_name"] = strings([class_name_of(label, self._manifest.classes) or "" for label in labels])
        for name, column in self._made.items():
            if column.type.shape or column.type.kind == "bytes":
                raise UsageError(f"`where`: {name} has values {column.type}, expected numbers or text")
            found = read_values(self._index, column.type, column.shard(split.name, number))
            columns[name] = pa.array(found, pa.large_string() if column.type.kind == "text" else None)
        if self._fields:
            if number == 0:
                self._read = stored_fields(self._manifest, self._data, split, self._fields)
            values = self._read(number, rows)
            self._unseen -= {name for each in values for name in each}
            for name in self._fields:
                try:
                    columns[name] = pa.array([each.get(name) for each in values])
                except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                    raise UsageError(f"`where`: {quoted(name)} is not a column of one type: {error}") from error
        return pa.table(columns)
