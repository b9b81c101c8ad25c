"""Checks a whole dataset: `dataprep verify` compares everything that is recorded twice, and trusts nothing else.

`dataset.json` is compared with its own sums, with the published facts and with a listing of the files; the index, the
events and the TFDS files with their digests and with `dataset.json`; every shard, in parallel, with its digests and
record by record with its rows of the index; and keys, classes and events over all shards. The formats' readers accept
only what the writers would have written.

Each difference is a finding of one of the kinds in `findings.py`. Something that could not be read proves nothing; if
there is no other finding, the exit code is 3. `--deep` decodes every image.
"""
