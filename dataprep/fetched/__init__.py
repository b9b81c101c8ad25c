"""The recipe for rows from the web: from a table of URLs to shards of downloaded images.

    rows ─▶ filter ─▶ fetch ─▶ encode ─▶ duplicates ─▶ shard, parquet, stats ─▶ receipt ─▶ index, manifest

`recipe.py` is the recipe (dataprep/builder/recipe.py). `plan.py` divides tables into shards; `shards.py` builds each in
a worker, with `fetching.py`, which downloads, `encode.py`, which turns downloaded bytes into a training image,
`collect.py`, which gives every row exactly one status and reason, and `shard.py`, which writes the files. `commit.py`
publishes a shard, `finish.py` writes index and manifest. The result depends on the rows and the downloaded bytes, never
on the order in which they arrive.

`existing.py` reads a finished dataset, and `retry.py` tries its failed rows again.
"""
