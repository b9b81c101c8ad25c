"""The parts of a dataset next to its shards: manifest, index, cards and the list of copies.

    <url>/dataset.json                                  the manifest, written last: the dataset is complete
    <url>/<split>/<name>-<split>-00000-of-00256.tar     WebDataset
    <url>/<tfds_name>-<split>.tfrecord-00000-of-00256   TFRecord, with dataset_info.json, features.json, …
    <url>/<split>/<class>/<file>                        image folder; for coco-dup5 the original folder is the class
    <url>/images/<folder>/<file>                        image folder with `repeat` physical: links in <split>/ lead here
    <url>/index/<split>.parquet                         place of every sample: one row group a shard; a large split has
                                                        parts, <split>-00000-of-00395.parquet and so on
    <url>/index/<split>-events.parquet                  every repaired and rejected image with its reason
    <url>/removed/<revision>-<split>.parquet            places of the samples that a revision removed
    <url>/replicas.json                                 copies in other regions; no digest includes it
    <url>/README.md, croissant.json, _info.json         cards, made from the manifest; no digest includes them
    <url>/views/, columns/                              views, and columns: values of samples, next to the shards
    <url>/_build/, _map/                                while a build or `dataprep map` runs; gone when it is complete

    manifest.py, records.py     the manifest and its fields; documents.py reads any JSON within bounds, by type
    index.py                    the index and the events: columns, parts, reader, writer
    revisions.py                what later revisions changed, and where the samples are now
    adopted.py                  data of other tools: place, trust, changes
    views.py, column_files.py   views and columns, as readers open them
    features.py, columns.py     annotations and their types; Arrow columns
    paths.py                    names below the root, and paths that keys were made of
    hashes.py, randomness.py    hashes of names and images; random words and permutations
    spill.py                    lists and tables that do not fit into memory
    replicas.py                 the list of copies
    run_lengths.py              masks of COCO

An image folder has no shard files, but its plan still has shards, as units of work. The manifest lists each as
`train/#00003-of-00008`, with one digest over the bytes of all its files in the plan's order.

Manifests, indexes and lists of replicas may come from a stranger. They are read within bounds, the type of every field
is checked, and no value is trusted before it is compared.
"""
