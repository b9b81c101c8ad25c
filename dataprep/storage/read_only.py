"""The part of the storage interface that writes, for places that are only read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

from dataprep.errors import UsageError
from dataprep.storage.base import ObjectInfo, Storage


class ReadOnlyStorage:
    """A place of originals, to which nothing can be written: every call that writes raises UsageError."""

    url: str

    def _refuse(self) -> NoReturn:
        raise UsageError(f"{self.url}: originals are only read from there; choose a folder or gs://bucket/prefix")

    def in_build(self, build: str) -> Storage:
        self._refuse()

    def spool_path(self, name: str) -> Path:
        self._refuse()

    def sending(self, spool: Path, name: str, expected_bytes: int = 0) -> AbstractContextManager[Callable[[int], None]]:
        self._refuse()

    def publish(self, spool: Path, name: str, crc32c: str) -> None:
        self._refuse()

    def create(self, name: str, data: bytes) -> bool:
        self._refuse()

    def create_last(self, name: str, data: bytes, before: Callable[[], None]) -> bool:
        self._refuse()

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        self._refuse()

    def replace_file(self, spool: Path, name: str, crc32c: str, expected: ObjectInfo) -> bool:
        self._refuse()

    def remove_stale_spools(self) -> int:
        self._refuse()

    def staged(self, root: str, still_ours: Callable[[], None]) -> Storage:
        self._refuse()

    def alone(self) -> AbstractContextManager[None]:
        self._refuse()

    def delete(self, name: str) -> None:
        self._refuse()

    def delete_tree(self, prefix: str) -> None:
        self._refuse()

    def delete_exactly(self, info: ObjectInfo) -> bool:
        self._refuse()

    def take_away(self, prefix: str) -> None:
        self._refuse()

    def prune(self, folders: Iterable[str]) -> None:
        self._refuse()
