"""The recipe for rows from the web: from a table of URLs to shards of downloaded images.

    rows ─▶ filters ─▶ fetch ─▶ encode ─▶ duplicates ─▶ shard, parquet, stats

`filters.py` decides which rows are fetched, `encode.py` turns downloaded bytes into a training image, `collect.py`
gives every row exactly one status and reason, and `shard.py` writes them as a shard. The result depends on the rows and
the downloaded bytes, never on the order in which they arrive.

`recipe.py` is the recipe (dataprep/builder/recipe.py). `plan.py` divides tables into shards, `shards.py` builds each,
and `commit.py` publishes it, `finish.py` writes index and manifest. `retry.py` tries failed rows again, with
`newest.py` and `revision.py`.
"""
