"""Tables and answers for the tests of LAION's pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dataprep.sources.laion import LaionTables, measure_tables
from dataprep.storage import open_storage
from dataprep.web.outcomes import Outcome, Request, Status


def make_tables(folder: Path, rows: Sequence[dict[str, Any]], rows_per_shard: int = 10_000) -> LaionTables:
    """A parquet table of these rows, measured."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "table.parquet")
    return measure_tables(open_storage(str(folder)), ["table.parquet"], rows_per_shard=rows_per_shard)


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
