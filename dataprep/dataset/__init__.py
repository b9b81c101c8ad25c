"""What a dataset consists of besides its shards; everything that a reader of datasets needs to know.

    <url>/dataset.json                                  the manifest, written last: if it exists, the dataset is whole
    <url>/<split>/<name>-<split>-00000-of-00256.tar     WebDataset
    <url>/<tfds_name>-<split>.tfrecord-00000-of-00256   TFRecord, with dataset_info.json, features.json, …
    <url>/<split>/<class>/<file>                        image folder; for coco-dup5 the original folder is the class
    <url>/images/<folder>/<file>                        image folder with --repeat physical: links in <split>/ lead here
    <url>/index/<split>.parquet                         where every sample lies: one row group a shard
    <url>/index/<split>-events.parquet                  every repaired and rejected image with its reason
    <url>/replicas.json                                 copies in other regions; outside every digest
    <url>/_build/                                       while a build runs; gone when the dataset is whole

An image folder has no shards, but its plan has: they are the units of work, and the manifest lists them as
`train/#00003-of-00008` with the digest of their files' bytes, one after the other in the plan's order.

Manifests, indexes and lists of replicas may come from a stranger. They are read within bounds, every field by its type
and none believed before it is compared. A manifest leads to data elsewhere only where the user named that place
(`trust.py`).

Random numbers are raw Philox words (`randomness.py`), keyed by a hash of (order version, seed, purpose, epoch, pass):
NumPy promises that these words never change, unlike its shuffles.
"""
