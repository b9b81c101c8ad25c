"""The recipe for rows from the web: from a table of URLs to shards of downloaded images.

    rows ─▶ filter ─▶ fetch ─▶ encode ─▶ duplicates ─▶ shard, parquet, stats ─▶ receipt ─▶ index, manifest

`recipe.py` is the recipe (dataprep/builder/recipe.py), which also writes index and manifest. `plan.py` divides tables
into shards; `shards.py` builds each in a worker and publishes it, with `fetching.py`, which downloads, `collect.py`,
which turns downloaded bytes into training images and gives every row exactly one status and reason, and `shard.py`,
which writes the files. The result depends on the rows and the downloaded bytes, never on the order in which they
arrive.

`existing.py` reads a finished dataset, and `retry.py` tries its failed rows again.
"""
