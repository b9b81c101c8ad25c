"""Where buckets and machines are, what moving bytes between them costs, and copies of a dataset elsewhere.

`placement.py` is the entry point: builds, loaders and `check-region` call it before the first byte is read. It finds
the location of the bucket and of this machine (`machine.py`), decides whether the reading is co-located, free, paid or
unknown (`region.py`, pure), and prices it (`cost.py` over the tables in `dataprep/data/`, pure). `replicate.py` makes
copies, `buckets.py` and `accounts.py` make buckets and their service accounts, `accelerators.py` reads the names of
TPUs, `gcloud.py` runs gcloud, and `tpu/` operates TPU machines. docs/regions.md has the rules.
"""
