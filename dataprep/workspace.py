"""What lies under `<dataset>/_build/` while a build is under way: the plan, the enumerations, the receipts.

plan.json                  create-only; holds the plan's hash
plan.parquet               references, one row group a shard; a table of URLs has none
source-<split>.parquet     an enumeration, kept so that no rerun walks the archives again
receipts/00007.parquet     create-only; a shard's receipt with its index rows
folder/                    an image folder on disk before it is renamed into place
tmp/                       files being written, and those of fetched shards that wait to be put in place

`_retry/` holds receipts/ and tmp/ likewise while failed rows of a finished dataset are tried again.
"""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.checksums import HashingWriter, digests_of
from dataprep.columns import table_of
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.plan import Plan, differences, plan_from_document
from dataprep.records import Enumeration, Event, Fetched, SampleRef, ShardPlan, ShardReceipt, SourceFile
from dataprep.storage import disk_errors, open_storage
from dataprep.storage.base import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# Of the plan, read with one request: some forty shards of 500 references.
PLAN_WINDOW_BYTES = 2**20
BUILD = "_build"
PLAN_JSON = f"{BUILD}/plan.json"
PLAN_PARQUET = f"{BUILD}/plan.parquet"
FOLDER = f"{BUILD}/folder"
RETRY = "_retry"


def refs_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("key", pa.string()),
            ("source", pa.dictionary(pa.int32(), pa.string())),
            ("offset", pa.int64()),
            ("num_bytes", pa.int64()),
            ("label", pa.int32()),
        ]
    )


def index_schema(*, with_files: bool = False) -> pa.Schema:
    """Columns of `index/<split>.parquet`; height and width are null where images were not checked.

    Args:
        with_files: Adopted image folders have a last column `file`, the image's name below the data's root; it does
            not follow from the key there. Adopted data may have no image_crc32c.
    """
    import pyarrow as pa

    fields = [
        ("key", pa.string()),
        ("shard", pa.int32()),
        ("record_offset", pa.int64()),
        ("record_bytes", pa.int64()),
        ("image_offset", pa.int64()),
        ("image_bytes", pa.int64()),
        ("image_crc32c", pa.uint32()),
        ("label", pa.int32()),
        ("height", pa.int32()),
        ("width", pa.int32()),
    ]
    return pa.schema([*fields, ("file", pa.string())] if with_files else fields)


def refs_table(refs: Sequence[SampleRef]) -> pa.Table:
    """References as columns, in their order."""
    schema = refs_schema()
    return table_of(([getattr(ref, name) for ref in refs] for name in schema.names), schema)


def refs_from_table(table: pa.Table) -> list[SampleRef]:
    """The references of a table, in its order."""
    columns = (table.column(name).to_pylist() for name in refs_schema().names)
    return [SampleRef(*row) for row in zip(*columns, strict=True)]


# The plan


def store_plan(storage: Storage, plan: Plan, shards: Iterator[pa.Table] | None) -> None:
    """Store a plan and its references, if it has any, create-only; the same plan already there is fine.

    Raises:
        UsageError: Another build is under way there; says what differs.
    """
    found = read_plan(storage)
    if found is not None:
        refuse_other_plan(storage, plan, found)
        return
    # References first: whoever finds plan.json finds them too.
    if shards is not None:
        publish_row_groups(storage, PLAN_PARQUET, shards, refs_schema())
    document = json.dumps(plan.document(), indent=1, sort_keys=True).encode() + b"\n"
    try:
        storage.create(PLAN_JSON, document)
    except ConflictError:
        refuse_other_plan(storage, plan, read_plan(storage) or plan)


def read_plan(storage: Storage) -> Plan | None:
    """The plan of the build under way, or None."""
    try:
        document = json.loads(storage.read(PLAN_JSON))
    except FileNotFoundError:
        return None
    plan = plan_from_document(document)
    if plan.plan_hash != document["plan_hash"]:
        raise FormatError(
            f"{storage.url_of(PLAN_JSON)}: its hash does not match its content; "
            "it was edited or written by another version: start over with --overwrite"
        )
    return plan


def refuse_other_plan(storage: Storage, ours: Plan, theirs: Plan) -> None:
    """Raise UsageError, naming what differs, unless both plans are the same."""
    if ours.plan_hash == theirs.plan_hash:
        return
    what = "; ".join(differences(ours.document(), theirs.document())[:6])
    raise UsageError(
        f"{storage.url}: a build with another plan is under way there: {what}. "
        "Finish it with its own options, choose another --output, or start over with --overwrite"
    )


@lru_cache(maxsize=4)
def open_plan(output_url: str, plan_hash: str) -> tuple[Plan, pq.ParquetFile]:
    """The stored plan with its references, once a process. Raises FormatError when it is not the one asked for."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    storage = open_storage(output_url)
    plan = stored_plan(storage, plan_hash)
    if storage.is_local:
        return plan, pq.ParquetFile(storage.url_of(PLAN_PARQUET))
    file = RangeFile(storage, PLAN_PARQUET, PLAN_WINDOW_BYTES)
    return plan, pq.ParquetFile(pa.PythonFile(file, mode="r"))


def stored_plan(storage: Storage, plan_hash: str) -> Plan:
    """The plan of the build under way. Raises FormatError when it is not the one asked for."""
    plan = read_plan(storage)
    if plan is None or plan.plan_hash != plan_hash:
        raise FormatError(f"{storage.url_of(PLAN_JSON)}: absent or of another build; expected plan {plan_hash[:12]}")
    return plan


def read_shard_plan(output_url: str, plan_hash: str, index: int) -> ShardPlan:
    """One shard's references, read as one row group."""
    plan, parquet = open_plan(output_url, plan_hash)
    split, split_index = plan.locate(index)
    refs = refs_from_table(parquet.read_row_group(index, use_threads=False))
    return ShardPlan(index, split.name, split_index, len(split.shard_samples), tuple(refs))


class RangeFile(io.RawIOBase):
    """A stored object as a seekable file, each read one ranged request.

    Args:
        window_bytes: A request brings so much at least, and near the object's end all that is left before it; reads
            within it need none. 0: each read brings what it asks for.
    """

    def __init__(self, storage: Storage, name: str, window_bytes: int = 0) -> None:
        super().__init__()
        info = storage.stat(name)
        if info is None:
            raise FileNotFoundError(storage.url_of(name))
        self._storage, self._name, self._size, self._position = storage, name, info.num_bytes, 0
        self._window_bytes, self._window, self._window_at = window_bytes, b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._position)
        count = left if size is None or size < 0 else min(size, left)
        at = self._position - self._window_at
        if not 0 <= at <= at + count <= len(self._window):
            start = min(self._position, max(0, self._size - self._window_bytes))
            at = self._position - start
            num_bytes = min(self._size - start, max(at + count, self._window_bytes))
            self._window = self._storage.read_range(self._name, start, num_bytes) if num_bytes else b""
            self._window_at = start
        self._position += count
        return self._window[at : at + count]

    def readall(self) -> bytes:
        return self.read()


# Enumerations


def enumeration_file(split: str) -> str:
    return f"{BUILD}/source-{split}.parquet"


def store_enumeration(storage: Storage, split: str, enumeration: Enumeration, *, allow_partial: bool) -> None:
    """Keep an enumeration for reruns."""
    sources = json.dumps([asdict(source) for source in enumeration.sources])
    classes = json.dumps(enumeration.classes)
    facts = {"sources": sources, "classes": classes, "allow_partial": str(allow_partial)}
    schema = refs_schema().with_metadata(facts)
    publish_row_groups(storage, enumeration_file(split), iter([refs_table(enumeration.refs)]), schema)


def load_enumeration(storage: Storage, source: Storage, split: str, *, allow_partial: bool) -> Enumeration | None:
    """The kept enumeration; None where there is none, an archive has another size now, or it was made under another
    `--allow-partial` and so was checked otherwise."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        data = storage.read(enumeration_file(split))
    except FileNotFoundError:
        return None
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    if table.schema.metadata[b"allow_partial"] != str(allow_partial).encode():
        return None
    sources = [SourceFile(**entry) for entry in json.loads(table.schema.metadata[b"sources"])]
    for file in sources:
        info = source.stat(file.name)  # None: an unpacked folder, whose files are checked as they are read
        if info is not None and info.num_bytes != file.num_bytes:
            return None
    return Enumeration(refs_from_table(table), sources, tuple(json.loads(table.schema.metadata[b"classes"])))


# Receipts


def receipt_file(index: int, root: str = BUILD) -> str:
    return f"{root}/receipts/{index:05d}.parquet"


def write_receipt(storage: Storage, receipt: ShardReceipt, rows: pa.Table, root: str = BUILD) -> None:
    """Store a shard's receipt and index rows, create-only: from here on the shard is done.

    Raises:
        ConflictError: Another receipt stands there.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {b"receipt": json.dumps(asdict(receipt), sort_keys=True).encode()}
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata(metadata), sink)
    storage.create(receipt_file(receipt.index, root), sink.getvalue().to_pybytes())


def read_receipt(storage: Storage, index: int, root: str = BUILD) -> tuple[ShardReceipt, pa.Table] | None:
    """A shard's receipt and its index rows, or None while it is not done."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        data = storage.read(receipt_file(index, root))
    except FileNotFoundError:
        return None
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    fields: dict[str, Any] = json.loads(table.schema.metadata[b"receipt"])
    events = tuple(Event(**event) for event in fields.pop("events"))
    fetched = _fetched(fields.pop("fetched", None))
    return ShardReceipt(**fields, events=events, fetched=fetched), table.replace_schema_metadata(None)


def _fetched(fields: dict[str, Any] | None) -> Fetched | None:
    if fields is None:
        return None
    sequences = {name: tuple(fields[name]) for name in ("files", "allow_networks")}
    return Fetched(**{**fields, **sequences})


def read_receipts(
    storage: Storage, indexes: Iterable[int], root: str = BUILD
) -> Iterator[tuple[ShardReceipt, pa.Table] | None]:
    """What `read_receipt` returns for each, in their order; over a network many are read at a time."""
    read = partial(read_receipt, storage, root=root)
    if storage.reads_in_flight == 1:
        yield from map(read, indexes)
        return
    with ThreadPoolExecutor(storage.reads_in_flight, thread_name_prefix="dataprep-receipts") as threads:
        waiting = iter(indexes)
        ahead: deque[Future[tuple[ShardReceipt, pa.Table] | None]] = deque()
        for index in islice(waiting, storage.reads_in_flight):
            ahead.append(threads.submit(read, index))
        while ahead:
            found = ahead.popleft().result()
            for index in islice(waiting, 1):
                ahead.append(threads.submit(read, index))
            yield found


def finished_shards(storage: Storage, root: str = BUILD) -> set[int]:
    """Indexes of the shards that have a receipt."""
    names = (info.name.rpartition("/")[2] for info in storage.list(f"{root}/receipts/"))
    return {int(name.removesuffix(".parquet")) for name in names}


# Parquet files of the build and of the index


def publish_row_groups(storage: Storage, name: str, groups: Iterator[pa.Table], schema: pa.Schema) -> dict[str, Any]:
    """Write a parquet file with one row group a table, empty ones included, and put it in place.

    Returns:
        `{file, bytes, sha256}`, as the manifest lists it.
    """
    spool, digests = spool_row_groups(storage, name, groups, schema)
    storage.publish(spool, name, digests.crc32c)
    return {"file": name, "bytes": digests.num_bytes, "sha256": digests.sha256}


def spool_row_groups(
    storage: Storage, name: str, groups: Iterator[pa.Table], schema: pa.Schema
) -> tuple[Path, HashingWriter]:
    """Write such a file to where `storage.publish` takes it from; the path, and the file's digests."""
    import pyarrow.parquet as pq

    spool = storage.spool_path(name)
    with disk_errors(spool), pq.ParquetWriter(spool, schema) as writer:
        for table in groups:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    with disk_errors(spool), spool.open("rb") as stream:
        return spool, digests_of(stream)
