"""What a dataset consists of besides its shards; everything that a reader of datasets needs to know.

    <url>/dataset.json                                  the manifest, written last: if it exists, the dataset is whole
    <url>/<split>/<name>-<split>-00000-of-00256.tar     WebDataset
    <url>/<tfds_name>-<split>.tfrecord-00000-of-00256   TFRecord, with dataset_info.json, features.json, …
    <url>/<split>/<class>/<file>                        image folder; for coco-dup5 the original folder is the class
    <url>/images/<folder>/<file>                        image folder with --repeat physical: links in <split>/ lead here
    <url>/index/<split>.parquet                         where every sample lies: one row group a shard; of a large split
                                                        in parts, <split>-00000-of-00395.parquet and so on
    <url>/index/<split>-events.parquet                  every repaired and rejected image with its reason
    <url>/replicas.json                                 copies in other regions; outside every digest
    <url>/README.md, <url>/croissant.json               cards, made of the manifest; outside every digest
    <url>/_build/                                       while a build runs; gone when the dataset is whole

An image folder has no shard files, but its plan still has shards, as units of work. The manifest lists each as
`train/#00003-of-00008`, with one digest over the bytes of all its files in the plan's order.

Manifests, indexes and lists of replicas may come from a stranger. They are read within bounds, the type of every field
is checked, and no value is trusted before it is compared. A manifest may lead to data in another place only if the user
named that place (`trust.py`).

Random numbers are raw Philox words (`randomness.py`), keyed by a hash of (order version, seed, purpose, epoch, pass):
NumPy promises that these words never change, unlike its shuffles.
"""
