"""Checks a complete dataset: `dataprep verify` compares everything that is recorded twice.

`run.py` compares `dataset.json` with its own sums and with the published facts, and, with `files.py`, with a listing of
the files; the index, the events and the TFDS files with their digests and with `dataset.json`. Then it checks every
shard, in parallel, with its digests and record by record with its rows of the index: `shard.py`, or `fetched_shard.py`
for rows from the web. At the end it compares keys, classes and events over all shards, and copies with `replicas.json`.
The formats' readers accept only what the writers would have written.

Each difference is a finding of one of the kinds in `findings.py`. Something that could not be read proves nothing; if
there is no other finding, the exit code is 3. `deep` decodes every image.
"""
