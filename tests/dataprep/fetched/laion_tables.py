"""Tables and answers for the tests of LAION's pieces."""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep.dataset.records import Placement
from dataprep.fetched.collect import RowOptions, RowResult, collect
from dataprep.fetched.shard import ShardSchema, schema_with, write_samples
from dataprep.sources.laion import LaionTables, Row, measure_tables, read_shard_rows
from dataprep.storage import open_storage
from dataprep.web.requests import Outcome, Request, Status
from tests.dataprep.fetched.pictures import encoded, photo

BODIES = [encoded(photo(80, 60), "JPEG"), None, encoded(photo(300, 400, 1), "PNG"), encoded(photo(9, 9), "JPEG")]
ROWS = [
    {
        "SAMPLE_ID": 10**17 + i,
        "URL": f"http://h/{i}.jpg",
        "TEXT": text,
        "LICENSE": "?",
        "NSFW": None if i == 2 else "UNLIKELY",
        "similarity": None if i == 2 else 0.3125,
        "key": f"theirs-{i}",
    }
    for i, text in enumerate(['ä "quoted"\nline', "gone", None, "last"])
]
"""Rows whose answers BODIES are: some lack values, one fails, and `key` is a name that records take."""


def make_tables(folder: Path, rows: Sequence[dict[str, Any]], rows_per_shard: int = 10_000) -> LaionTables:
    """A parquet table of these rows, measured."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "table.parquet")
    return measure_tables(open_storage(str(folder)), ["table.parquet"], rows_per_shard=rows_per_shard)


def table_rows(folder: Path, rows: Sequence[dict[str, Any]]) -> tuple[LaionTables, list[Row]]:
    """A table of these rows, and its only shard's rows as a build reads them."""
    tables = make_tables(folder, rows)
    return tables, read_shard_rows(open_storage(str(folder)), tables, 0)


def answers(bodies: Sequence[bytes | None], order: Sequence[int] | None = None):
    """A Fetch that answers from memory, in another order if need be; None is a 404."""

    def fetch(requests: Iterable[Request]) -> Iterator[Outcome]:
        waiting = {request.key: request for request in requests}
        for key in order if order is not None else list(waiting):
            if waiting.pop(key, None) is not None:
                body = bodies[key]
                if body is None:
                    yield Outcome(key, Status.HTTP, "404 Not Found", http_code=404)
                else:
                    yield Outcome(key, Status.SUCCESS, body=body)

    return fetch


@dataclass(frozen=True, slots=True)
class Collected:
    """What became of ROWS."""

    rows: list[Row]
    results: list[RowResult]
    schema: ShardSchema
    spool: io.BytesIO
    """The images."""

    def write(self, format_name: str) -> tuple[bytes, list[Placement]]:
        """Return the shard, and where each sample lies in it."""
        stream = io.BytesIO()
        places = write_samples(stream, format_name, self.rows, self.results, self.schema, self.spool)
        return stream.getvalue(), places


def collect_rows(folder: Path, **options: Any) -> Collected:
    """Collect ROWS, whose answers come in another order."""
    tables, rows = table_rows(folder, ROWS)
    row_options, spool = RowOptions(**options), io.BytesIO()
    results = collect(rows, answers(BODIES, [3, 2, 1, 0]), row_options, spool)
    return Collected(rows, results, schema_with(tables.carried, row_options), spool)
