"""Files of images that a table names by path: where they are below the source, and how large.

A table may be a stranger's, so its paths are names below the source that the user named, and nothing else:

- a relative path begins at the folder of the table, or at the source if the first image is only there; `..` may lead
  upwards, but not above the source;
- an absolute path, or a URL of a bucket, must begin with the source's own;
- on disk a link must lead to a file inside the source, or inside the folder to which a link directly in the source
  leads: such a link the user has made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

from dataprep.errors import SourceError, UsageError
from dataprep.messages import shell_words, shown
from dataprep.sources.keys import name_parts
from dataprep.storage.base import Storage

_WEB = ("http://", "https://", "ftp://")


class LocatedImages:
    """The images that one table names.

    Args:
        root: The source.
        table: Name of the table below the source.
        named: URL of the table or tables as the user named them, for a message.
    """

    def __init__(self, root: Storage, table: str, named: str) -> None:
        self._root, self._folder, self._named = root, PurePosixPath(table).parent, named
        self._base: PurePosixPath | None = None
        self._folders: dict[str, tuple[Path, ...]] = {}

    @property
    def are_listed(self) -> bool:
        """Whether sizes come from a list of many files, as in a bucket; on disk each file is asked for its own."""
        return not self._root.is_local

    def name_of(self, path: str) -> str:
        """Return the name below the source of a path in the table, whether the file exists or not.

        Raises:
            SourceError: The path leads elsewhere; the message is a clause.
        """
        inside = f"{self._root.url}/"
        if path.startswith(inside):
            return self._normal(PurePosixPath(), path.removeprefix(inside))
        if path.lower().startswith(_WEB):
            raise SourceError(
                f"{shown(path)} is on the web; expected a file below {self._root.url}: a table of URLs is built by "
                f"dataprep build laion --source {shell_words(self._named)} --name NAME"
            )
        if path.startswith("/") or "://" in path:
            raise SourceError(
                f"{shown(path)} is not below {self._root.url}: give as --source a folder or prefix that holds both "
                "table and images, and the table below it as --table"
            )
        if self._base is None:
            self._base = self._found_base(path)
        return self._normal(self._base, path)

    def _found_base(self, path: str) -> PurePosixPath:
        """Return the folder to which paths are relative, by the first one."""
        for base in (self._folder, PurePosixPath()):
            try:
                if self._root.stat(self._normal(base, path)) is not None:
                    return base
            except (SourceError, UsageError):
                continue
        return self._folder

    def _normal(self, base: PurePosixPath, path: str) -> str:
        parts = [part for part in base.parts if part != "."]
        for part in path.split("/"):
            if part == "..":
                if not parts:
                    raise SourceError(f"{shown(path)} climbs out of {self._root.url}; expected a file below it")
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        try:
            return "/".join(name_parts("/".join(parts)))
        except SourceError as error:
            raise SourceError(f"{shown(path)}: {error}") from error

    def sizes(self, names: Collection[str]) -> Mapping[str, int]:
        """Return the size of each file that exists.

        Raises:
            SourceError: A link leads out of the source.
        """
        if self._root.is_local:
            found = {name: self.size_on_disk(name) for name in names}
            return {name: size for name, size in found.items() if size is not None}
        return {info.name: info.num_bytes for info in self._root.stats(list(names)) if info is not None}

    def size_on_disk(self, name: str) -> int | None:
        """Return the size of a file; None if it does not exist. Raises SourceError for a link that leads out."""
        try:
            info = self._root.stat(name)
        except UsageError as error:
            raise SourceError(f"{shown(name)}: {error}") from error
        if info is None:
            return None
        path = Path(self._root.url_of(name))
        if path.is_symlink():
            target = path.resolve()
            if not any(target.is_relative_to(folder) for folder in self._inside(name)):
                raise SourceError(
                    f"{self._root.url}: {shown(name)}: a link that leads outside the source; expected a file"
                )
        return info.num_bytes

    def _inside(self, name: str) -> tuple[Path, ...]:
        """Return the folders inside which a link may lead."""
        top, slash, _ = name.partition("/")
        if top not in self._folders:
            root = Path(self._root.url)
            self._folders[top] = (root.resolve(), (root / top).resolve()) if slash else (root.resolve(),)
        return self._folders[top]
