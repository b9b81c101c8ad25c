"""From rows of a LAION table and what the web answered to shards.

    rows ─▶ filters ─▶ fetch ─▶ encode ─▶ duplicates ─▶ shard, parquet, stats

`filters.py` says which rows are asked for, `encode.py` makes a training image of the bytes that came, `collect.py`
gives every row its one status and reason, `shard.py` writes a shard of them. All of it depends on the rows and the
bytes that came, never on the order in which they came.

`plan.py` cuts tables into shards, `build.py` and `commit.py` bring each to its place, `finish.py` sums all up in the
manifest. `retry.py` tries failed rows again, over `newest.py` and `revision.py`: those of our datasets and, once
adopted, of img2dataset's (`layout.py`, `img2dataset.py`, `making.py`).
"""
