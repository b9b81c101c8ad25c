"""Objects of a bucket for a writer that may lose the right to write while it is suspended.

    upload to root/tmp/<name>-<uuid> -> is the place still ours? -> the server copies it to its name, if that is free

An upload cannot depend on another object, because Cloud Storage has no such precondition, so an upload alone cannot
respect the right to write. A copy can, because its source must exist. Whoever takes the right away first changes the
object that `still_ours` reads, then deletes everything below `root`. An upload that was finished before no longer has a
source; one that is finished afterwards finds that the place belongs to another writer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from uuid import uuid4

from dataprep.errors import ConflictError, StorageError
from dataprep.storage import gcs_retry
from dataprep.storage.checksums import crc32c_of_bytes
from dataprep.storage.gcs import GCSStorage
from dataprep.storage.messages import conflict, spool_gone, unsettled
from dataprep.storage.names import check_name
from dataprep.storage.spool import NAME_CHARACTERS

DISCARDS_IN_FLIGHT = 2
_discarding = ThreadPoolExecutor(DISCARDS_IN_FLIGHT, thread_name_prefix="dataprep-discard")
"""Removes staged objects that were copied, while their writer goes on: nothing waits for that. One that is left because
the process is killed lies below `root`, which is removed at the end."""


class StagedGCS(GCSStorage):
    """Storage of `Storage.staged`; objects below `root` itself are uploaded directly."""

    def __init__(
        self,
        url: str,
        root: str,
        still_ours: Callable[[], None],
        deadlines: gcs_retry.Deadlines | None = None,
    ) -> None:
        super().__init__(url, deadlines)
        self._staging, self._still_ours = check_name(root), still_ours

    @contextlib.contextmanager
    def sending(self, spool: Path, name: str, expected_bytes: int = 0) -> Iterator[Callable[[int], None]]:
        """Send the file to the staged name."""
        target = name if self._is_staging(name) else self._stage(spool.name)
        with super().sending(spool, target, expected_bytes) as sent:
            yield sent

    def publish(self, spool: Path, name: str, crc32c: str) -> None:
        """Publish with three requests: upload, check whether the place is still ours, copy. A fourth, which is free,
        removes the upload afterwards."""
        if self._is_staging(name):
            super().publish(spool, name, crc32c)
            return
        try:
            num_bytes = spool.stat().st_size
        except FileNotFoundError:
            raise StorageError(spool_gone(spool)) from None
        stage = self._stage(spool.name)
        super().publish(spool, stage, crc32c)
        self._copy(stage, name, (num_bytes, crc32c))

    def create(self, name: str, data: bytes) -> bool:
        """Write the object in the same steps as `publish`."""
        if self._is_staging(name):
            return super().create(name, data)
        stage = self._stage(f"{PurePosixPath(name).name[-NAME_CHARACTERS:]}-{uuid4().hex}")
        super().create(stage, data)
        return self._copy(stage, name, (len(data), crc32c_of_bytes(data)))

    def create_last(self, name: str, data: bytes, before: Callable[[], None]) -> bool:
        """Upload and check while `before` runs, then copy: if the place was lost meanwhile, the upload is gone or about
        to be, as it would be for a writer that is suspended before it copies."""
        if self._is_staging(name):
            return super().create_last(name, data, before)
        stage = self._stage(f"{PurePosixPath(name).name[-NAME_CHARACTERS:]}-{uuid4().hex}")
        with ThreadPoolExecutor(1) as threads:
            uploaded = threads.submit(self._upload_ours, stage, data)
            before()
            uploaded.result()
        return self._copy(stage, name, (len(data), crc32c_of_bytes(data)), is_checked=True)

    def _upload_ours(self, stage: str, data: bytes) -> None:
        super().create(stage, data)
        try:
            self._still_ours()
        except BaseException:
            self._discard(stage)
            raise

    def _copy(self, stage: str, name: str, ours: tuple[int, str], *, is_checked: bool = False) -> bool:
        try:
            if not is_checked:
                self._still_ours()
            try:
                made = self.rewrite_from(self, name, lambda num_bytes: None, original_name=stage)
            except (StorageError, FileNotFoundError):
                self._still_ours()
                raise
        except BaseException:
            self._discard(stage)
            raise
        if made is not None:
            _discarding.submit(self._discard, stage)
            return True
        self._discard(stage)
        theirs = self.stat(name)
        if theirs is None:
            raise StorageError(unsettled(self.url_of(name)))
        if (theirs.num_bytes, theirs.crc32c) != ours:
            self._still_ours()
            raise ConflictError(conflict(self.url_of(name), ours, (theirs.num_bytes, str(theirs.crc32c))))
        return False

    def _discard(self, stage: str) -> None:
        with contextlib.suppress(StorageError):
            self.delete(stage)

    def _is_staging(self, name: str) -> bool:
        return name.startswith(f"{self._staging}/")

    def _stage(self, file: str) -> str:
        return f"{self._staging}/tmp/{file}"
