"""Locations of buckets and machines, costs of moving bytes between them, and copies of a dataset elsewhere.

placement.py     the entry point: builds, loaders and check-region call it before the first byte is read
region.py        whether a reading is co-located, free, paid or unknown (pure)
prices.py        tables of dataprep/data/ and prices; cost.py prices passes, copies, and ways to read often (pure)
capacity.py      whether the hosts of a TPU can feed it (pure); accelerators.py reads the names of TPUs
replicate.py     makes copies of a dataset
gcloud.py        runs gcloud, and finds TPUs; tpu/ operates TPU machines

docs/regions.md and docs/capacity.md have the rules.
"""
