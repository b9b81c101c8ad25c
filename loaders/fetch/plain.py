"""Plain data, such as a folder of pictures or tars, which are indexed when a loader first opens them.

The index is what `dataprep adopt` writes. It is kept in the user's cache, in a folder whose name is a digest of the
data's URL, so that the data need not be writable and the next run finds it.

The index of a large folder begins with heads: the first files of many class folders. A loader over such a folder in a
bucket can begin before all files are listed, with the same images as if they all were.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

from dataprep.adoption import Adoption, AdoptRequest, HeadFiles, Quiet, adopt, head_files
from dataprep.dataset.adopted import SHARD_NAMES, open_linked
from dataprep.dataset.manifest import MANIFEST, no_dataset, read_manifest
from dataprep.dataset.paths import PLAN_JSON, is_hidden_name, is_readable_image
from dataprep.errors import DataprepError, SourceError, UsageError
from dataprep.host.cpu import available_cores
from dataprep.messages import command_line, counted, human_bytes
from dataprep.storage import Storage, open_storage
from dataprep.storage.base import Browsable
from loaders.fetch.cache import user_cache

HEADS = (8_192, 131_072)
"""Sizes, in images, of the heads with which a loader of a large folder in a bucket begins while the rest is listed: the
first takes about a second to list and index, and at some thousand images a second it lasts until the next is ready.
Multiples of `dataprep.adoption.find.FILES_OF_FOLDER`, so that each head contains the one before it."""
PARQUET = ".parquet"
_LOOKED_AT = 1000
"""Number of names, as many as one listing request returns, that are checked to see whether data are tables."""
_OPTION = re.compile("`(?!index`)([a-z_]+)`")
"""Option of a command in a message; `index` is a setting of loaders, too."""


class Growth:
    """Larger indexes of a folder, which a separate process makes while a loader delivers the known images; the index
    of all images gets the URL `index`."""

    def __init__(self, data: Storage, index: str) -> None:
        self._data_url, self._index = data.url, index
        self._folder = tempfile.mkdtemp(prefix="dataprep-heads-")
        self._makers: list[subprocess.Popen[str]] = []
        self._end = weakref.finalize(self, _end, os.getpid(), self._makers, self._folder)
        self.has_ended = False
        """Whether the last index was of all images."""

    def begin(self, files: HeadFiles) -> str:
        """Index the first head, begin with the others, and return the URL of the head's index."""
        head = f"{self._folder}/0"
        adoption = adopt(AdoptRequest(url=self._data_url, index_url=head, heads=HEADS[:1]), Quiet(), head=files)
        say(f"{self._data_url}: {_understood(adoption)} are known; the others are listed meanwhile")
        words = [sys.executable, "-P", "-c", "from loaders.fetch.plain import make; make()"]
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        self._makers.append(
            subprocess.Popen(
                [*words, self._data_url, self._index, self._folder, *map(str, HEADS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": self._folder},
                process_group=0,  # Ctrl-C reaches this process, which then ends the other one
            )
        )
        return head

    def check_open(self) -> None:
        """Raise UsageError if the loader was closed."""
        if not self._end.alive:
            raise UsageError(f"{self._data_url}: the loader was closed before it knew all images; open another one")

    def next(self) -> str:
        """Wait for the next larger index, and return its URL.

        Raises:
            SourceError: The data cannot be indexed; the text says why.
            UsageError: The loader was closed.
        """
        self.check_open()
        stdout = self._makers[0].stdout
        line = stdout.readline() if stdout is not None else ""
        found: dict[str, str] = json.loads(line or "{}")
        if "error" in found or not found:
            raise SourceError(found.get("error") or f"{self._data_url}: the process that indexes ended; open it again")
        self.has_ended = "whole" in found
        return found.get("whole") or found["head"]

    def close(self) -> None:
        """End the process, and remove the heads; this also happens when nothing refers to them any more."""
        self._end()


def _end(pid: int, makers: Sequence[subprocess.Popen[str]], folder: str) -> None:
    if os.getpid() != pid:
        return  # a forked process has copies of its parent's resources
    for maker in makers:
        maker.kill()
        maker.communicate()
    shutil.rmtree(folder, ignore_errors=True)


def make() -> None:
    """Index a head of a folder, then all of it, and print the URL of each index, as `Growth` reads them."""
    data_url, index, folder, *numbers = sys.argv[1:]
    heads = tuple(map(int, numbers))
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    try:
        data = open_linked(data_url)
        for number in range(1, len(heads)):
            files = _head_files(data, heads[number])
            if files is None:
                break
            head = f"{folder}/{number}"
            request = AdoptRequest(url=data_url, index_url=head, heads=heads[: number + 1])
            adopt(request, Quiet(), head=files)
            print(json.dumps({"head": head}), flush=True)
        with _alone(index):
            url, _ = indexed(data, index, heads=heads)
        print(json.dumps({"whole": url}), flush=True)
    except (DataprepError, OSError) as error:
        print(json.dumps({"error": str(error)}), flush=True)


def _end_with_parent(folder: str) -> None:
    """End this process, and remove the heads, when the one that started it has closed the pipe, or has died."""
    sys.stdin.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _head_files(data: Storage, images: int) -> HeadFiles | None:
    """List the head of a folder in a bucket; None if the data are small, or of another kind."""
    return head_files(data, images) if isinstance(data, Browsable) else None


def indexed(
    data: Storage,
    index: str | None,
    *,
    grows: bool = False,
    heads: tuple[int, ...] = (),
    fields: tuple[str, ...] = (),
) -> tuple[str, Growth | None]:
    """Index plain data, unless they are indexed and unchanged, and return the URL of the index.

    Args:
        data: Place of the data.
        index: Folder or gs:// URL for the index; None: one in the user's cache.
        grows: Whether to return the index of a head of a large folder in a bucket, and the `Growth` that indexes the
            rest.
        heads: Numbers of images with which the index of a folder begins; empty for HEADS.
        fields: Columns of parquet files that must be copied with the pictures; others that cannot be are left out.

    Raises:
        UsageError: The data do not exist.
        SourceError: The data are damaged; the text says where.
    """
    if data.is_local and not Path(data.url).is_dir():
        found = "a file, not a folder" if Path(data.url).exists() else "no such folder"
        raise UsageError(
            f"{data.url}: {found}; expected the folder or URL of a dataset of `dataprep build`, pictures, tars or "
            "TFRecords, not a pattern of files, or the .json file of a mixture"
        )
    if data.stat(PLAN_JSON) is not None:
        raise no_dataset(data)
    cache = user_cache() / "adopted"
    is_own = index is None
    index = index or str(cache / hashlib.sha256(data.url.encode()).hexdigest()[:16])
    is_new = open_storage(index).stat(MANIFEST) is None
    if is_new:
        _check_writable(open_storage(index))
    if tables := _tables(data):
        return _copied(data, tables, index, is_own, fields), None
    with _options_of(command_line("adopt", data.url, index="DIR")):
        if grows and is_new and (files := _head_files(data, HEADS[0])):
            growth = Growth(data, index)
            try:
                return growth.begin(files), growth
            except BaseException:
                growth.close()
                raise
        request = AdoptRequest(url=data.url, index_url=index, heads=heads or HEADS)
        adoption = adopt(request, _Lines(), workers=available_cores())
        if adoption.changes:
            say(f"{data.url}: changed since it was indexed ({adoption.changes}); indexing it again")
            adoption = adopt(replace(request, overwrite=True), _Lines(), workers=available_cores())
    say(f"{data.url}: {_understood(adoption)}; index in {adoption.url}")
    return adoption.url, None


@contextmanager
def _options_of(command: str) -> Iterator[None]:
    """Add a command to an error inside the block that names its options, because loaders lack them."""
    try:
        yield
    except DataprepError as error:
        error.args = (_with_command(str(error), command),)
        raise


def _with_command(text: str, command: str) -> str:
    text, found = _OPTION.subn(lambda match: f"--{match[1].replace('_', '-')}", text)
    return f"{text} (options of `{command}`, whose DIR can then be loaded)" if found else text


def _check_writable(index: Storage) -> None:
    """Raise UsageError if the folder of an index on a disk cannot be made or written."""
    place = Path(index.url)
    there = next((path for path in (place, *place.parents) if path.exists()), place)
    if index.is_local and not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise UsageError(
            f"{index.url}: the index of the data cannot be kept there: {there} is not a folder that can be written; "
            "name another one with `index`, or set XDG_CACHE_HOME"
        )


def _tables(data: Storage) -> dict[str, int]:
    """Return the sizes of parquet files, by name, of data without pictures or shards next to them."""
    names = [info.name for info in islice(data.list(), _LOOKED_AT) if not is_hidden_name(info.name)]
    others = (is_readable_image(name) or any(shape.search(name) for shape in SHARD_NAMES.values()) for name in names)
    if not any(name.endswith(PARQUET) for name in names) or any(others):
        return {}
    return {info.name: info.num_bytes for info in data.list() if info.name.endswith(PARQUET)}


def _copied(data: Storage, tables: dict[str, int], output: str, is_own: bool, fields: tuple[str, ...]) -> str:
    """Copy the pictures in parquet files, which cannot be read one at a time, into tars; return their URL. Columns that
    cannot be features, such as one without a value in some row, are left out unless `fields` names them. Raises
    UsageError if the disk has not enough room, or the tables have no column of pictures; or a place that the user named
    (not `is_own`) has another dataset, which is never replaced."""
    import dataprep  # here, because few loaders build

    place, num_bytes = open_storage(output), sum(tables.values())
    found = read_manifest(place)
    command = command_line("build", "table", source=data.url, output="DIR", format="webdataset")
    if found is not None and {each["name"]: each["bytes"] for each in found.sources} == tables:
        if lacking := ", ".join(sorted({*fields} & {*found.options.get("own", {}).get("drop", ())})):
            reason = f"{data.url}: its copy has no {lacking}, because a row has no value of it, or one of another type"
            raise UsageError(_with_command(f"{reason}; give one with `default` COLUMN=VALUE", command))
        say(f"{data.url}: {dataprep.open(place.url)!r}".splitlines()[0])
        return place.url
    if found is not None and not is_own:
        raise UsageError(
            f"{place.url}: holds a dataset that is not a copy of {data.url} as it is now; name another place with "
            "`index`, or remove it"
        )
    if place.is_local:
        Path(place.url).parent.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(Path(place.url).parent).free
        if free_bytes < num_bytes:
            raise UsageError(
                f"{data.url}: copying the pictures in parquet files takes {human_bytes(num_bytes)}, and the disk of "
                f"{place.url} has {human_bytes(free_bytes)} left; set index to another folder or a bucket"
            )
    say(f"{data.url}: copying the pictures in parquet files, {human_bytes(num_bytes)}, to {place.url}, once")
    drop: list[str] = []
    with _options_of(command):
        while True:
            try:
                dataprep.build_table(
                    source=data.url, output=place.url, format="webdataset", overwrite=found is not None, drop=drop
                )
                return place.url
            except SourceError as error:
                if not error.columns or not error.columns.keys().isdisjoint(fields):
                    raise
                reasons = "; ".join(error.columns.values())
                say(_with_command(f"{data.url}: left out of the copy: {reasons}", command))
                drop += error.columns


@contextmanager
def _alone(index: str) -> Iterator[None]:
    """Let one process of this machine at a time make an index on a disk; the others then find it."""
    storage = open_storage(index)
    if not storage.is_local:
        yield
        return
    Path(storage.url).mkdir(parents=True, exist_ok=True)
    with open(f"{storage.url}/.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _understood(adoption: Adoption) -> str:
    """Return a summary of the data, such as `imagefolder, train of 95 images and val of 5, 2 classes`."""
    found = adoption.manifest
    splits = " and ".join(f"{split.name} of {counted(split.samples, 'image')}" for split in found.splits)
    classes = counted(len(found.classes), "class") if found.classes else "no labels"
    return f"{found.format}, {splits}, {classes}"


class _Lines(Quiet):
    """Progress of indexing, as lines on stderr."""

    def step(self, what: str) -> None:
        say(f"index: {what}")

    def started(self, shards: int, num_bytes: int) -> None:
        say(f"index: indexing the images in {human_bytes(num_bytes)}, once; later runs use the index")

    def log(self, line: str) -> None:
        say(line)

    warn = log


def say(line: str) -> None:
    """Print a line for the user, on stderr."""
    print(line, file=sys.stderr)
