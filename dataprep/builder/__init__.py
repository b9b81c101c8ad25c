"""Builds a dataset: from references to its originals to complete shards, an index and a manifest.

    originals ─▶ references ─▶ plan ─▶ shards + receipts ─▶ index ─▶ manifest

`driver.py` calls the steps of a recipe (`recipe.py`; `archives.py` is the recipe for images, and `growth.py` adds to a
finished dataset with it): `enumeration.py` lists the originals, `plan.py` and `references.py` hold the plan,
`output.py` looks at the output and claims it, `pool.py` gives shards to workers, `shard.py` builds a shard with
`images.py` and writes a receipt (`receipts.py`), `merge.py` makes index and manifest from the receipts, and `cards.py`
describes the result. `finished.py` reads a finished dataset, and publishes its revisions.

**Same bytes.** A shard's bytes depend only on the originals, the options, the seed and the versions of the codecs: not
on workers, engine, retries, interruptions, clock, host, nor on disk or bucket. Four rules ensure this:

- The order is a stable argsort of raw Philox words (`dataprep/dataset/randomness.py`).
- Shards are cut at equal shares of the source bytes, so the plan can be made before any image is read.
- Tar headers, TFRecord examples and JSON are written by a few lines of our own, without variable parts.
- A rejected image makes its shard shorter; it never moves a sample from one shard to another.

**The plan.** `_build/plan.json` holds the options that change bytes, the codec versions, the sources (relative names,
sizes, and a hash of the references), the class list, the shape of every split, a hash over all of it, and an id
of this build. It is created before the first shard and owns the place from then on (docs/decisions/0006). A rerun with
another plan is refused, and the error says what differs. All other state of the build is in `_build/<plan hash>/<id>/`:
`plan.parquet` holds the references, one row group a shard, so that a worker reads only its own. The list of originals
is kept in `_build/source-<split>-<hash>.parquet`; a rerun uses it unless the version of an archive, the digest of a
table, or the files of the folder (`_build/listing-<hash>`) have changed (enumeration.py).

**The listed versions.** References contain the listed version of each original file (`ObjectInfo.version`: its
generation in a bucket, its times on a disk), and only that version is read (`shard.py`). The plan's hash does not cover
versions: the same bytes elsewhere give the same plan, and the versions belong to one build.

The size and CRC32C of `plan.parquet` are in `plan.json`, and the size and CRC32C of an enumeration are in a file next
to it. Both files are compared with them before use. A damaged enumeration is made again from the originals. So is a
damaged `plan.parquet`, if the originals and the options still give the same plan; finished shards stay.

**Complete or nothing.** Every step gives the same bytes in any process, and no existing file is replaced:

1. A shard is written to a spool file: in `tmp/` of the build's folder on disk, locked by its writer; for a bucket in
   the machine's temporary folder, and uploaded while it is written (docs/decisions/0003).
2. It is published under its name (`dataprep/storage`). If an object with the same size and CRC32C has the name, that is
   success; any other object is a ConflictError that names both.
3. Its receipt is published, with its index rows. From then on the shard is done.
4. When all receipts exist, the index, the format's metadata, the renames of an image folder, and last `dataset.json`
   are published, between two comparisons of all files in place with the receipts (merge.py). Then `_build/` is
   removed; if that is interrupted, the dataset is already complete and any rerun removes it.

So a rerun after a crash builds only the missing parts, two concurrent builds make one dataset, and a build that fails
first checks whether a manifest of its own plan exists by now. At most one shard per worker is built twice.

**Two kinds of datasets.** For originals that can be read again the steps are those above. A table of URLs is
downloaded, and the web answers differently each time: there the create-only receipt decides which attempt counts
(`dataprep/fetched`).

**Engines.** All of them run the same code for a shard, `build_shard(job, index)`; the local pool is in `pool.py`, the
others are in `pipelines/`. In a worker one thread reads and decodes, a second digests and writes, a third syncs
(`shard.py`), and a fourth publishes the shard while the first already checks the next shard's images. A standstill has
a deadline (`dataprep/host/heartbeat.py`), and a slow shard has none.

**Start-up time matters**: a build of 4,000 images takes a few seconds. So NumPy, pyarrow and rich are imported in the
functions that use them, and Arrow columns come from `dataprep/dataset/columns.py`, because `pyarrow.array` imports
pandas if it is installed.
"""
