"""A dataset repository of the Hugging Face Hub as a place of originals: `hf://datasets/OWNER/NAME[@REVISION][/PATH]`.

Only huggingface_hub talks to the Hub, so it handles endpoint (HF_ENDPOINT), token, proxies and certificates, and no
credential passes through this module. A branch may move while a build runs, so `pinned` first replaces it with its
commit, which never changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from dataprep.errors import AccessError, StorageError, UsageError, needing
from dataprep.host.heartbeat import beat
from dataprep.messages import first_line, quoted
from dataprep.storage import base
from dataprep.storage.errors import GO_ON, missing
from dataprep.storage.readonly import ReadOnlyStorage

SCHEME = "hf://"
DATASETS = f"{SCHEME}datasets/"
MAIN = "main"
"""Branch that is read if the user names no revision."""
RETRIES = 5
RETRY_WAIT_S = 1.0
"""Time before the first retry; each of the next ones waits twice as long, at most 8 s."""
TIMEOUT_S = 60.0
MAX_FILES = 5_000_000
MAX_LICENCE_CHARACTERS = 200
_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SPECIAL_REVISION = re.compile(r"refs/(?:convert/[A-Za-z0-9_-]+|pr/\d+)(?=/|\Z)")
"""Revisions with slashes that the Hub's own URLs do not escape."""
_EXPECTED = f"expected {DATASETS}OWNER/NAME, with @REVISION and /PATH if you like"


@dataclass(frozen=True, slots=True)
class HubPlace:
    """The parts of a URL."""

    repository: str
    """`OWNER/NAME`."""
    revision: str
    path: str
    """Folder in the repository; empty for all of it."""

    @property
    def url(self) -> str:
        revision = self.revision if _SPECIAL_REVISION.fullmatch(self.revision) else quote(self.revision, safe="")
        return f"{DATASETS}{self.repository}@{revision}" + (f"/{self.path}" if self.path else "")


@dataclass(frozen=True, slots=True)
class HubSource:
    """A source on the Hub with its revision resolved, and its repository's description."""

    url: str
    name: str
    """The repository's name without its owner."""
    origin: str
    """Address of the commit for people."""
    licence: str
    """Licence from the repository's card; empty if the card has none."""


def is_hub(url: str) -> bool:
    """Return whether a URL is one of the Hub."""
    return url[: len(SCHEME)].lower() == SCHEME


def place_in(url: str) -> HubPlace:
    """Split a URL. Raises UsageError if it names no dataset repository."""
    rest = url[len(DATASETS) :] if url[: len(DATASETS)].lower() == DATASETS else ""
    owner, _, rest = rest.partition("/")
    name = re.split(r"[@/]", rest, maxsplit=1)[0]
    rest = rest.removeprefix(name)
    revision = MAIN
    if rest.startswith("@"):
        special = _SPECIAL_REVISION.match(rest[1:])
        revision = special[0] if special else rest[1:].partition("/")[0]
        rest, revision = rest[1 + len(revision) :], unquote(revision)
    if not _REPOSITORY.fullmatch(f"{owner}/{name}") or not revision:
        raise UsageError(f"{quoted(url)} is not a dataset of the Hugging Face Hub; {_EXPECTED}")
    return HubPlace(f"{owner}/{name}", revision, base.check_prefix(rest.strip("/")))


def pinned(url: str) -> HubSource:
    """Resolve the revision of a URL to its commit.

    Raises:
        UsageError: The URL is malformed, or the revision does not exist.
        AccessError: The repository does not exist, or needs a token or the acceptance of its terms.
        StorageError: The Hub cannot be reached.
    """
    place = place_in(url)
    with _hub_errors(place):
        from huggingface_hub import constants

        revision = quote(place.revision, safe="")
        response = _answer(f"{constants.ENDPOINT}/api/datasets/{place.repository}/revision/{revision}", {})
        try:
            described = _DESCRIBED.decode(response.content)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            what = first_line(error)
            raise StorageError(f"{place.url}: the Hub's answer does not describe it ({what}); {GO_ON}") from error
    if not _COMMIT.fullmatch(described.sha):
        raise StorageError(f"{place.url}: the Hub's answer has no commit for this revision; {GO_ON}")
    return HubSource(
        url=replace(place, revision=described.sha).url,
        name=place.repository.partition("/")[2],
        origin=f"https://huggingface.co/datasets/{place.repository}/tree/{described.sha}",
        licence=_licence(described.card),
    )


class _Described(msgspec.Struct):
    """The needed part of the Hub's description of a repository."""

    sha: str
    card: Any = msgspec.field(name="cardData", default=None)
    """Front matter of the repository's README.md, which its owner writes."""


_DESCRIBED = msgspec.json.Decoder(_Described)


def _licence(card: Any) -> str:
    found = card.get("license") if isinstance(card, dict) else None
    names = found if isinstance(found, list) else [found]
    text = ", ".join(name for name in names if isinstance(name, str))
    return text if text.isprintable() and len(text) <= MAX_LICENCE_CHARACTERS else ""


class HubStorage(ReadOnlyStorage):
    """A folder of a dataset repository, at one revision. See `Storage` for the contract of each call."""

    reads_in_flight = 16

    def __init__(self, url: str) -> None:
        self._place = place_in(url)
        self.url = self._place.url

    def stat(self, name: str) -> base.ObjectInfo | None:
        num_bytes = self._sizes.get(base.check_name(name))
        return None if num_bytes is None else base.ObjectInfo(name, num_bytes, None)

    def list(self, prefix: str = "", first: str = "") -> Iterator[base.ObjectInfo]:
        folder = f"{base.check_prefix(prefix)}/" if prefix else ""
        for name in sorted(self._sizes):
            if name.startswith(folder) and name >= first:
                yield base.ObjectInfo(name, self._sizes[name], None)

    def stats(self, names: Sequence[str]) -> Sequence[base.ObjectInfo | None]:
        return [self.stat(name) for name in names]

    def _get(self, name: str, offset: int, num_bytes: int) -> tuple[bytes, base.ObjectInfo | None]:
        place, url = self._place, self.url_of(name)
        with _hub_errors(place, url):
            from huggingface_hub import hf_hub_url

            path = f"{place.path}/{name}" if place.path else name
            address = hf_hub_url(place.repository, path, repo_type="dataset", revision=place.revision)
            wanted = {"Range": f"bytes={offset}-{offset + num_bytes - 1}", "Accept-Encoding": "identity"}
            response = _answer(address, wanted)
        if response.status_code == 416:
            return b"", None
        data = bytes(response.content)
        if response.status_code != 206 and len(data) != num_bytes:
            raise StorageError(f"{url}: the server sends no ranges; check HF_ENDPOINT")
        size = response.headers.get("Content-Range", "").rpartition("/")[2]
        return data, base.ObjectInfo(name, int(size), None) if size.isdecimal() else None

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        """Sizes of all files below the folder, by name."""
        if _COMMIT.fullmatch(self._place.revision):  # it never changes, so a process lists it once
            with _hub_errors(self._place):
                from huggingface_hub import constants

                return _sizes_of_commit(self._place, constants.ENDPOINT)
        return _sizes(self._place)


@lru_cache(maxsize=4)
def _sizes_of_commit(place: HubPlace, _endpoint: str) -> Mapping[str, int]:
    return _sizes(place)


def _sizes(place: HubPlace) -> Mapping[str, int]:
    inside, found = f"{place.path}/" if place.path else "", dict[str, int]()
    with _hub_errors(place):
        from huggingface_hub import HfApi
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        try:
            for item in HfApi().list_repo_tree(
                place.repository, place.path or None, recursive=True, revision=place.revision, repo_type="dataset"
            ):
                beat()
                if isinstance(item, RepoFile) and item.path.startswith(inside):
                    found[item.path.removeprefix(inside)] = int(item.size)
                if len(found) > MAX_FILES:
                    raise StorageError(f"{place.url}: more than {MAX_FILES:,} files; name one of its folders")
        except EntryNotFoundError:
            return {}
    return found


def _network_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the HTTP library that huggingface_hub uses, which depends on its version."""
    from huggingface_hub.errors import HfHubHTTPError

    return tuple(each for each in HfHubHTTPError.__mro__ if each.__name__ == "HTTPError")


def _answer(url: str, headers: Mapping[str, str]) -> Any:
    """Return the answer to a request, with retries; an answer of 416 is returned, other refusals are raised."""
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

    response = http_backoff(
        "GET",
        url,
        headers={**build_hf_headers(), **headers},
        max_retries=RETRIES,
        base_wait_time=RETRY_WAIT_S,
        timeout=TIMEOUT_S,
    )
    if response.status_code != 416:
        hf_raise_for_status(response)
    return response


@contextmanager
def _hub_errors(place: HubPlace, url: str = "") -> Iterator[None]:
    """Turn errors of huggingface_hub inside the block into ours, on one line and without signed URLs."""
    with needing("hf", place.url):
        from huggingface_hub import errors
        from huggingface_hub.utils import logging
    logging.set_verbosity_error()  # it announces each retry in two lines
    where = url or place.url
    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        raise UsageError(f"{where}: HF_HUB_OFFLINE is set, so the Hub is not contacted; unset it") from error
    except errors.GatedRepoError as error:
        page = f"https://huggingface.co/datasets/{place.repository}"
        raise AccessError(f"{where}: its owner has terms of access: accept them at {page}, and {log_in}") from error
    except errors.RepositoryNotFoundError as error:
        raise AccessError(
            f"{where}: no dataset {place.repository} is on the Hub, or it is private: check the name, or {log_in}"
        ) from error
    except errors.RevisionNotFoundError as error:
        what = f"{place.repository} has no revision {quoted(place.revision)}"
        raise UsageError(f"{where}: {what}; check its name") from error
    except errors.EntryNotFoundError as error:
        raise missing(where) from error
    except errors.HFValidationError as error:
        raise UsageError(f"{where}: {first_line(error)}; {_EXPECTED}") from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "an unknown status")
        kind = AccessError if status in (401, 403) else StorageError
        raise kind(f"{where}: the Hub answered {status}; {log_in if status in (401, 403) else GO_ON}") from error
    except _network_errors() as error:
        raise StorageError(
            f"{where}: the Hub cannot be reached ({first_line(error)}); check the network and HF_ENDPOINT, and {GO_ON}"
        ) from error
