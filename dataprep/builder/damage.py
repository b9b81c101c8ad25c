"""Compares the files of a finished dataset with its manifest by name and size, without reading them.

A build that finds a manifest asks here whether the dataset is still whole. `dataprep verify` compares bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import NoReturn

from dataprep.builder.finished import image_root, indexed_images
from dataprep.dataset.index import index_files
from dataprep.dataset.manifest import MANIFEST, first_faults, size_faults
from dataprep.dataset.paths import RETRY_JSON
from dataprep.dataset.records import Manifest, SplitManifest
from dataprep.errors import UsageError, VerificationError
from dataprep.formats import FORMATS
from dataprep.messages import counted, shell_words
from dataprep.storage import Storage
from dataprep.storage.local import LocalStorage


def refuse_damaged(storage: Storage, manifest: Manifest) -> None:
    """Raise VerificationError, naming files, if some are missing or have another size than the manifest says.

    While `dataprep retry-failed` runs, or after it was interrupted, files are newer than the manifest: then nothing is
    compared.
    """
    damaged = list(damaged_files(storage, manifest))
    if not damaged or storage.stat(RETRY_JSON) is not None:
        return
    raise VerificationError(
        f"{storage.url}: the dataset is damaged, {counted(len(damaged), 'file')} of it: "
        f"{first_faults(damaged)}. Build it again with --overwrite; or remove the damaged files "
        f"and {MANIFEST}, and run this command again, which builds what is missing; or remove the damaged files alone, "
        f"and copy them with dataprep replicate COPY --to {shell_words(storage.url)}; then run "
        f"dataprep verify {shell_words(storage.url)}"
    )


def refuse_other_versions(storage: Storage, manifest: Manifest, versions: str) -> NoReturn:
    """Raise an error about a dataset that this build would make anew with other versions of the codecs.

    Args:
        storage: The dataset.
        manifest: Manifest of the dataset.
        versions: The versions with which it was made and those of this build, in words.

    Raises:
        VerificationError: Files are missing or have another size.
        UsageError: All files are there.
    """
    advice = "or build all of it anew with --overwrite"
    damaged = list(damaged_files(storage, manifest))
    if damaged:
        raise VerificationError(
            f"{storage.url}: the dataset is damaged, {counted(len(damaged), 'file')} of it: {first_faults(damaged)}. "
            f"It was {versions}, and other versions may write other bytes: install those versions to repair it, copy "
            f"the files with dataprep replicate COPY --to {shell_words(storage.url)}, {advice}"
        )
    raise UsageError(f"{storage.url}: the dataset is there already, {versions}; choose another --output, {advice}")


def damaged_files(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """Yield a clause for each file of a dataset that is missing or has another size: `x.tar has 3 bytes, expected 9`.

    On disk every file is looked at, a bucket of shards is listed once. Images that are files of their own are listed.
    """
    due = {entry["file"]: entry["bytes"] for entry in manifest.files}
    single = FORMATS[manifest.format].one_file_per_image
    for split in manifest.splits:
        shards = () if single else split.shards
        due |= {entry["file"]: entry["bytes"] for entry in chain(index_files(split), [split.events], shards)}
    damaged = list(size_faults(due.items(), _sizes(storage, due, single=single)))
    yield from damaged
    if single and not damaged:  # otherwise the index, which names the images, may be missing
        for split in manifest.splits:
            yield from _damaged_images(storage, manifest, split, set(due))


def _sizes(storage: Storage, names: Collection[str], *, single: bool) -> Mapping[str, int]:
    """Return the sizes of files that exist, in bytes; a bucket is listed unless every image is a file of its own."""
    if isinstance(storage, LocalStorage):
        return storage.sizes(names)
    infos = map(storage.stat, names) if single else storage.list()
    return {info.name: info.num_bytes for info in infos if info is not None}


def _damaged_images(storage: Storage, manifest: Manifest, split: SplitManifest, others: set[str]) -> Iterator[str]:
    """Yield the clauses of a split of an image folder, whose index is read only if number or bytes of its files differ.

    Args:
        others: Names of files that are no images.
    """
    root = f"{image_root(manifest, split)}/"
    sizes = [info.num_bytes for info in storage.list(root) if info.name not in others]
    if (len(sizes), sum(sizes)) != (split.samples, split.num_bytes):
        found = {info.name: info.num_bytes for info in storage.list(root)}
        yield from size_faults(indexed_images(storage, manifest, split), found)
