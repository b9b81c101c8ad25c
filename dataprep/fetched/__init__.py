"""The recipe for rows that come from the web: from a table of URLs, and what the web answers, to shards.

    rows ─▶ filters ─▶ fetch ─▶ encode ─▶ duplicates ─▶ shard, parquet, stats

`filters.py` decides which rows are asked for, `encode.py` makes a training image of the bytes that came, `collect.py`
gives every row its one status and reason, `shard.py` writes a shard of them. All of it depends on the rows and the
bytes that came, never on the order in which they came.

`recipe.py` is the recipe (dataprep/build/recipe.py). `plan.py` cuts tables into shards, `shards.py` and `commit.py`
bring each to its place, `finish.py` sums all up in the manifest. `retry.py` tries failed rows again, with `newest.py`
and `revision.py`: rows of our own datasets and, once adopted, of img2dataset's (`layout.py`, `img2dataset.py`,
`making.py`).
"""
