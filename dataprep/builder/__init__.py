"""Building a dataset: from the references to its originals to complete shards, an index and a manifest.

    originals ─▶ references ─▶ plan ─▶ shards + receipts ─▶ index ─▶ manifest

`driver.py` calls the steps of a recipe (`recipe.py`; `archives.py` is the one for images): `enumeration.py` lists the
originals, `plan.py` and `references.py` are what it makes of them, `output.py` answers what is at the output and claims
it, `pool.py` gives shards to workers, `shard.py` builds one with `images.py` and leaves a receipt
(`receipts.py`), `merge.py` makes index and manifest of the receipts, and `cards.py` describes the result.
`finished.py` reads a finished dataset.

**Same bytes.** A shard's bytes depend on the originals, the options, the seed and the versions of the codecs, and on
nothing else: not on workers, engine, retries, interruptions, clock, host, nor on disk or bucket. Four rules make it so:

- The order is a stable argsort of raw Philox words (`dataprep/dataset/randomness.py`).
- Shards are cut at equal shares of the source bytes, so the plan can be made before any image is read.
- Tar headers, TFRecord examples and JSON are written by our own few lines, which contain nothing variable.
- A rejected image makes its shard shorter; it never moves a sample from one shard to another.

**The plan.** `_build/plan.json` holds the options that change bytes, the codec versions, the sources (relative names,
sizes, and a hash of what was found in them), the class list, the shape of every split, a hash over all of it, and an id
of this build. It is created before the first shard and owns the place from then on (docs/decisions/0006). A rerun with
another plan is refused and told what differs. All other state of the build is in `_build/<plan hash>/<id>/`:
`plan.parquet` holds the references, one row group a shard, so that a worker reads only its own. An enumeration of the
originals is kept in `_build/source-<split>-<hash>.parquet`; a rerun uses it unless an archive is another version,
a table has another digest, or the folder other files than `_build/listing-<hash>` says (enumeration.py).

**The listed versions.** References say in which version a file of originals was listed (`ObjectInfo.version`: its
generation in a bucket, its times on a disk), and only that one is read (`shard.py`). The plan's hash does not
cover versions: the same bytes elsewhere are the same plan, and the versions belong to one build.

The size and CRC32C of `plan.parquet` are in `plan.json`, and those of an enumeration in a file next to it. Both files
are compared with them before anything is built from them. A damaged enumeration is made again from the originals, and
so is a damaged `plan.parquet` if they and the options still give the plan that began; its finished shards stay.

**Whole or nothing.** Every step gives the same bytes in whichever process it runs, and nothing existing is replaced:

1. A shard is written to a spool file: in `tmp/` of the build's folder on disk, locked by its writer; for a bucket in
   the machine's temporary folder, and uploaded while it is written (docs/decisions/0003).
2. It is published under its name (`dataprep/storage`). A name that is taken by the same size and CRC32C is success;
   anything else is a ConflictError that names both.
3. Its receipt is published, with its index rows. From then on the shard is done.
4. When all receipts exist, the index, the format's metadata, the renames of an image folder, and last `dataset.json`
   are published, between two comparisons of all files in place with the receipts (merge.py). Then `_build/` is
   removed; if that is interrupted, the dataset is complete already and any rerun does it.

So a rerun after a crash does only what is missing, two builds at once make one dataset, and a build that meets an error
first checks whether a manifest of its own plan exists by now. At most one shard a worker is built twice.

**Two kinds of datasets.** For originals that can be read again the steps are those above. A table of URLs is
downloaded, and the web answers differently each time: there the create-only receipt decides which attempt counts
(`dataprep/fetched`).

**Engines.** All of them run the same code for a shard, `build_shard(job, index)`; the local pool is in `pool.py`, the
others are in `pipelines/`. In a worker one thread reads and decodes, a second digests and writes, a third syncs
(`shard.py`), and a fourth publishes the shard while the first already checks the next shard's images. A standstill has
a deadline (`dataprep/host/heartbeat.py`), and a slow shard has none.

**Start-up counts**: 4,000 images take a few seconds. So NumPy, pyarrow and rich are imported in the functions that use
them, and Arrow columns come from `dataprep/dataset/columns.py`, because `pyarrow.array` imports pandas if it is
installed.
"""
