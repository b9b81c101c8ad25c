"""The references of a build's plan, one row group a shard: `plan.parquet` below the build's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial

from dataprep.arrays import pa
from dataprep.builder.output import Claim, OpenBuild, refuse_overtaken, with_references
from dataprep.builder.plan import FileDigest, digest_of, fault_of
from dataprep.builder.receipts import listed_receipts
from dataprep.dataset.columns import call, cast
from dataprep.dataset.index import spool_row_groups
from dataprep.dataset.paths import path_of
from dataprep.dataset.records import SampleRef, ShardPlan
from dataprep.errors import BuildError, FormatError
from dataprep.messages import one_line
from dataprep.sources.keys import is_file_of_image
from dataprep.storage import Storage
from dataprep.storage.parquet import ParquetFile, open_parquet

_RUN_AGAIN = "run the build again with its original options: it makes this file again from the originals, and continues"
PLAN_WINDOW_BYTES = 2**20
"""Bytes of the plan that one request reads: about forty shards of 500 references."""


def plan_parquet(root: str) -> str:
    """Return the name of the file with the references of the build with this root."""
    return f"{root}/plan.parquet"


def refs_schema(*, with_annotations: bool = False, with_crc32c: bool = False) -> pa.Schema:
    """Return the columns of a reference.

    Args:
        with_annotations: Append a column `annotations`, canonical JSON.
        with_crc32c: Append a column `crc32c`, the expected checksum of the image; null if it is not known.
    """
    fields = [
        ("key", pa.string()),
        ("source", pa.dictionary(pa.int32(), pa.string())),
        ("offset", pa.int64()),
        ("num_bytes", pa.int64()),
        ("label", pa.int32()),
        ("version", pa.int64()),
    ]
    if with_annotations:
        fields.append(("annotations", pa.large_string()))
    if with_crc32c:
        fields.append(("crc32c", pa.uint32()))
    return pa.schema(fields)


def stored_rows(rows: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Convert rows with the columns of `spill_schema` to a table with a schema from `refs_schema`."""
    columns = [_stored(rows.column(field.name), field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _stored(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """Return a column in one piece, dictionary-encoded in the order of first occurrence if the field is."""
    if isinstance(column, pa.ChunkedArray):
        whole = column.combine_chunks()
        column = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    return call("dictionary_encode", column) if pa.types.is_dictionary(field.type) else column


def refs_from_table(table: pa.Table) -> list[SampleRef]:
    *columns, versions = (table.column(name).to_pylist() for name in refs_schema().names)
    has_annotations, has_crc32c = (name in table.column_names for name in ("annotations", "crc32c"))
    texts = table.column("annotations").to_pylist() if has_annotations else [""] * table.num_rows
    checksums = table.column("crc32c").to_pylist() if has_crc32c else [None] * table.num_rows
    return list(map(SampleRef, *columns, map(str.encode, texts), checksums, versions))


def store_references(tables: Iterator[pa.Table], schema: pa.Schema, storage: Storage, root: str) -> FileDigest:
    """Store the references of a plan below the folder of its build, one table a shard, and return their digest."""
    spool, digests = spool_row_groups(storage, plan_parquet(root), tables, schema)
    storage.publish(spool, plan_parquet(root), digests.crc32c)
    return digest_of(digests)


def are_stored(tables: Iterator[pa.Table], schema: pa.Schema, storage: Storage, claim: Claim) -> bool:
    """Return whether these references equal a build's; they differ if originals have other versions."""
    spool, written = spool_row_groups(storage, plan_parquet(claim.root), tables, schema)
    spool.unlink()
    return digest_of(written) == claim.references


def repair_references(
    tables: Iterator[pa.Table], schema: pa.Schema, storage: Storage, claim: Claim, log: Callable[[str], None]
) -> Claim:
    """Store the references of a build again if they are absent or damaged. Raises OvertakenError if another build owns
    the output now, and BuildError if the tables have been consumed.

    Args:
        tables: References of the same plan, made from the originals, one table a shard; consumed only if needed.
        log: Called with a line about each repair.

    Returns:
        The claim; a new one if the digest differs because another version of pyarrow wrote the file.
    """
    name = plan_parquet(claim.root)
    try:
        fault = _fault(storage, claim)
        if fault is None:
            return claim
        found = f"damaged ({fault})"
    except FileNotFoundError:
        found = "gone"
    log(f"warning: {storage.url_of(name)} is {found}; it is made again from the originals")
    spool, written = spool_row_groups(storage, name, _all(tables, claim.plan.num_shards, storage.url_of(name)), schema)
    digest = digest_of(written)
    with storage.alone():  # no `overwrite` may remove the build's folder meanwhile
        refuse_overtaken(storage, claim)
        existing = storage.stat(name)
        if existing is not None and fault_of(storage, name, digest) is not None:
            storage.delete_exactly(existing)
        if digest != claim.references:  # the originals may have other versions, so no shard counts as done
            for info in listed_receipts(storage, claim.root).values():
                storage.delete_exactly(info)
        storage.publish(spool, name, digest.crc32c)
        return with_references(storage, claim, digest)


def _all(tables: Iterator[pa.Table], shards: int, where: str) -> Iterator[pa.Table]:
    """Yield the tables. Raises BuildError at the end if their number is not `shards`."""
    count = 0
    for table in tables:
        count += 1
        yield table
    if count != shards:
        raise BuildError(f"{where} is damaged; run the same command once more to make it from the originals")


def shard_plan(build: OpenBuild, index: int) -> ShardPlan:
    """Return one shard's references, read as one row group."""
    plan = build.plan
    split, split_index = plan.locate(index)
    refs = refs_from_table(references_of(build, index))
    return ShardPlan(
        index, split.name, split.first_shard + split_index, plan.shard_file(split, split_index), tuple(refs)
    )


def original_names(build: OpenBuild, indexes: Iterable[int], keys: Iterable[str]) -> dict[str, str]:
    """Return the names of original images of some shards by their keys: a file's path, or a path in an archive without
    suffix."""
    missing, found = set(keys), {}
    for index in indexes:
        if not missing:
            break
        table = references_of(build, index)
        for key, source in zip(*(table.column(name).to_pylist() for name in ("key", "source")), strict=True):
            if key in missing:
                missing.discard(key)
                found[key] = source if is_file_of_image(source) else path_of(key)
    return found


@lru_cache(maxsize=1)
def references_of(build: OpenBuild, index: int) -> pa.Table:
    """Return the references of a shard; the last shard's are kept in memory."""
    file = open_references(build)
    with _damage(build.storage, build.claim):
        table = file.read_row_group(index)
        position = table.schema.get_field_index("source")
        # Text becomes Python's strings in 0.1 us a row, dictionary-encoded text in 2.4.
        return table.set_column(position, "source", cast(table.column(position), pa.string()))


def read_references(storage: Storage, claim: Claim, indexes: Iterable[int]) -> Iterator[pa.Table]:
    """Yield the references of some shards of a build, one table for each shard; nothing if they have been removed.
    Raises FormatError if they are damaged."""
    try:
        file = _open_references(storage, claim)
    except FileNotFoundError:
        return
    for index in indexes:
        with _damage(storage, claim):
            table = file.read_row_group(index)
        yield table


@lru_cache(maxsize=4)
def open_references(build: OpenBuild) -> ParquetFile:
    """Open the references of a build, once in each process."""
    try:
        return _open_references(build.storage, build.claim)
    except FileNotFoundError as error:
        build.check()  # a build that overwrites this one removes them
        where = build.storage.url_of(plan_parquet(build.root))
        raise BuildError(f"{where} is gone, and no shard can be built without it; {_RUN_AGAIN}") from error


def _open_references(storage: Storage, claim: Claim) -> ParquetFile:
    num_bytes = claim.references.bytes if claim.references is not None else None
    open_file = partial(
        open_parquet, storage, plan_parquet(claim.root), window_bytes=PLAN_WINDOW_BYTES, num_bytes=num_bytes
    )
    with ThreadPoolExecutor(1) as threads:
        # In a bucket the footer is read while the checksum is requested; on disk the complete file is read before.
        opened = None if storage.is_local else threads.submit(open_file)
        fault = _fault(storage, claim)
        if fault is not None:
            raise _damaged(storage, claim, fault)
    with _damage(storage, claim):
        return open_file() if opened is None else opened.result()


def _fault(storage: Storage, claim: Claim) -> str | None:
    """Describe the difference between the references and their digest; None if equal. Raises FileNotFoundError."""
    if claim.references is None:
        return "plan.json does not have its checksum"
    return fault_of(storage, plan_parquet(claim.root), claim.references)


@contextmanager
def _damage(storage: Storage, claim: Claim) -> Iterator[None]:
    """Turn pyarrow's errors about a damaged file into FormatError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, ValueError, KeyError, OSError, MemoryError, OverflowError) as error:
        raise _damaged(storage, claim, one_line(error)) from error


def _damaged(storage: Storage, claim: Claim, fault: str) -> FormatError:
    return FormatError(f"{storage.url_of(plan_parquet(claim.root))} is damaged ({fault}); {_RUN_AGAIN}")
