"""S3, Azure Blob Storage and web servers as places that are read, through obstore.

    s3://bucket/prefix       also R2, MinIO and others, at AWS_ENDPOINT_URL
    az://container/prefix    of AZURE_STORAGE_ACCOUNT_NAME
    https://host/prefix      files of a web server, which the file LISTING names

Region, endpoint and credentials come from the environment variables of AWS's and Azure's own tools, so that workers
inherit them and no URL, manifest or log holds them. obstore must not look for a metadata server: outside of a cloud
that takes minutes.
"""

from __future__ import annotations

import hashlib
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dataprep.errors import AccessError, CredentialsError, StorageError, UnansweredError, UsageError, install_hint
from dataprep.host.heartbeat import beat
from dataprep.messages import first_line, quoted
from dataprep.storage import base
from dataprep.storage.errors import GO_ON, READ_LESS_AT_ONCE, missing
from dataprep.storage.gcs_client import Deadlines, request_timeout_s, retry_policy
from dataprep.storage.gcs_transfers import is_whole, is_worth_retrying, opening, runtime_is_of_parent, status_in_text
from dataprep.storage.readonly import ReadOnlyStorage

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, HTTPStore, ObjectStore

T = TypeVar("T")
CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 300.0
PAGE_OBJECTS = 1000
LISTING = "listing.txt"
"""File that lists the files of a web server, which cannot list them itself: one name a line."""
MAX_LISTING_BYTES = 256 << 20
LIST_COMMAND = f"find . -type f ! -name {LISTING} -printf '%P\\n' > {LISTING}"
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|ContainerBeingDeleted")
_OTHER_REGION = re.compile(r"redirect without LOCATION|PermanentRedirect|AuthorizationHeaderMalformed")
_NO_NAME = re.compile(r"Encountered object with invalid path: (.*)")
_SECRETS = re.compile(r": <.*|\?\S*=\S*")
"""Parts that are cut from messages: HTML pages, and queries, which may hold a signature."""


class RemoteStorage(ReadOnlyStorage):
    """A prefix of one of these places; reads give up after some time, by default after five minutes of retries. Raises
    UsageError if the URL does not name a bucket, container or host, or has a prefix that objects cannot have."""

    reads_in_flight = 64
    kind: ClassVar[str]
    """Name of the kind of place, for messages."""
    example: ClassVar[str]
    credentials: ClassVar[str]
    """Advice for missing or insufficient credentials."""

    def __init__(self, url: str, deadlines: Deadlines | None = None) -> None:
        scheme, _, rest = url.partition("://")
        self._bucket, _, prefix = rest.partition("/")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]*", self._bucket):
            raise UsageError(f"{quoted(url)} does not name a place; expected {self.example}")
        self._prefix = base.check_prefix(prefix)
        self._deadlines = deadlines
        self._opened: ObjectStore | None = None
        self.url = f"{scheme.lower()}://{self._bucket}/{self._prefix}".rstrip("/")

    def __reduce__(self) -> tuple[type[RemoteStorage], tuple[str, Deadlines | None]]:
        return type(self), (self.url, self._deadlines)

    def stat(self, name: str) -> base.ObjectInfo | None:
        import obstore

        store, full = self._store, self._full(base.check_name(name))
        with self._errors(self.url_of(name)):
            try:
                return _info(name, self._retried(lambda: obstore.head(store, full)))
            except FileNotFoundError:
                return None

    def list(self, prefix: str = "", first: str = "") -> Iterator[base.ObjectInfo]:
        """List objects with one request for each thousand; a request that fails is repeated after the last object."""
        import obstore

        folder = self._full(base.check_prefix(prefix)) or None
        root, last = f"{self._prefix}/" if self._prefix else "", ""

        def pages(after: str | None = None) -> Iterator[Any]:
            return iter(obstore.list(self._store, folder, offset=after, chunk_size=PAGE_OBJECTS))

        stream = pages()

        def next_page() -> list[ObjectMeta]:
            nonlocal stream
            try:
                found: list[ObjectMeta] = next(stream, [])
            except Exception:
                stream = pages(last or None)
                raise
            return found

        with self._errors(self.url_of(prefix) if prefix else self.url):
            while page := self._retried(next_page):
                beat()
                for meta in page:
                    path = meta["path"]
                    name = path.removeprefix(root)
                    if not path.startswith(root) or name < first:
                        continue
                    # A console marks a folder with an empty object, whose slash obstore leaves out.
                    if meta["size"] == 0 and self.stat(name) is None:
                        continue
                    if path < last:
                        raise StorageError(
                            f"{self.url}: lists {quoted(path)} after {quoted(last)}, expected sorted names; use a "
                            "store that sorts them"
                        )
                    last = path
                    yield _info(name, meta)

    def _get(self, name: str, offset: int, num_bytes: int) -> tuple[bytes, base.ObjectInfo | None]:
        import obstore
        from obstore.exceptions import BaseError

        store, full = self._store, self._full(name)

        def request() -> tuple[bytes, base.ObjectInfo]:
            answer = obstore.get(store, full, options={"range": (offset, offset + num_bytes)})
            return answer.bytes().to_bytes(), _info(name, answer.meta)

        url = self.url_of(name)
        with self._errors(url):
            try:
                return self._retried(request)
            except BaseError as error:
                if status_in_text(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    return b"", None
                if is_whole(error):
                    raise StorageError(f"{url}: {self.kind} sends no ranges; use another one") from error
                raise

    def _full(self, name: str) -> str:
        """Return the object's name in its bucket."""
        return "/".join(filter(None, (self._prefix, name)))

    def _retried(self, request: Callable[[], T]) -> T:
        """Call with retries; obstore's own are off, because they leave out 429 and know no deadlines."""

        def may_pass(error: BaseException) -> bool:
            text = str(error)
            return is_worth_retrying(error) and not _OTHER_REGION.search(text) and not _NO_NAME.search(text)

        retry = retry_policy(
            may_pass, deadlines=self._deadlines, status_of=status_in_text, counted=True, server=self.kind
        )
        found: T = retry(request)()
        return found

    @property
    def _store(self) -> ObjectStore:
        if runtime_is_of_parent():
            raise UsageError(
                f"{self.url}: this process cannot read from {self.kind}, because its parent did before the fork; start "
                'workers with "spawn" or "forkserver", in PyTorch DataLoader(…, multiprocessing_context="spawn")'
            )
        with opening:
            self._opened = self._opened or self._open_store()
            return self._opened

    def _open_store(self) -> ObjectStore:
        from obstore.exceptions import BaseError

        stall_s = request_timeout_s(self._deadlines)
        options: ClientConfig = {
            "connect_timeout": f"{min(stall_s, CONNECT_TIMEOUT_S) * 1000:.0f}ms",
            "read_timeout": f"{stall_s * 1000:.0f}ms",
            "timeout": f"{REQUEST_TIMEOUT_S:.0f}s",
        }
        try:
            return self._open(options)
        except (BaseError, ValueError) as error:
            raise UsageError(f"{self.url}: {first_line(error)}; {self.credentials}") from error

    @abstractmethod
    def _open(self, options: ClientConfig) -> ObjectStore:
        """Open the bucket, container or host. Raises CredentialsError."""

    @contextmanager
    def _errors(self, url: str) -> Iterator[None]:
        """Turn errors of obstore inside the block into ours, on one line and without signatures."""
        from google.api_core.exceptions import RetryError
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (BaseError, FileNotFoundError, RetryError) as raised:
            error = raised.cause if isinstance(raised, RetryError) else raised
            text, status = str(error), status_in_text(error)
            said = _SECRETS.sub("", first_line(error)).rstrip(". ")
            where = "/".join(self.url.split("/")[:3])
            if _NO_BUCKET.search(text):
                raise AccessError(f"{url}: {where} does not exist; check its name, and {self.credentials}") from error
            if isinstance(error, FileNotFoundError):
                raise missing(url) from error
            if _OTHER_REGION.search(text):
                raise AccessError(f"{url}: {where} is in another region; set AWS_REGION ({said})") from error
            if name := _NO_NAME.search(text):
                raise StorageError(f"{url}: {name[1]}; give this object another name") from error
            if status == HTTPStatus.FORBIDDEN or isinstance(error, PermissionDeniedError):
                raise AccessError(f"{url}: reading or listing it is denied; {self.credentials} ({said})") from error
            if status == HTTPStatus.UNAUTHORIZED or isinstance(error, UnauthenticatedError):
                raise CredentialsError(f"{url}: the credentials are not valid; {self.credentials} ({said})") from error
            if status is None:
                said = f"{self.kind} cannot be reached, check the network and the endpoint ({said})"
            step = GO_ON if self._deadlines is None else READ_LESS_AT_ONCE
            raise UnansweredError(f"{url}: {said}; {step}") from error


class BucketStorage(RemoteStorage):
    """A prefix of a bucket or container that can list one level of its names, or the first few."""

    def folders(self, prefix: str = "") -> Sequence[str]:
        """List the folders below a prefix with one request for each thousand names."""
        import obstore

        folder = self._full(base.check_prefix(prefix)) or None
        with self._errors(self.url_of(prefix) if prefix else self.url):
            found = self._retried(lambda: obstore.list_with_delimiter(self._store, folder))
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])

    def first(self, prefix: str, most: int) -> Sequence[base.ObjectInfo]:
        """List objects with one request for each thousand."""
        return list(islice(self.list(prefix), most))


class S3Storage(BucketStorage):
    """A prefix of a bucket of S3, or of a store with its protocol, at AWS_ENDPOINT_URL."""

    kind = "S3"
    example = "s3://bucket/prefix"
    credentials = (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of an account that may list and read it, "
        "AWS_SKIP_SIGNATURE=true for a public bucket, and AWS_ENDPOINT_URL for a store outside AWS"
    )

    def _open(self, options: ClientConfig) -> ObjectStore:
        from obstore.store import S3Store

        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        if endpoint.startswith("http://"):
            options["allow_http"] = True
        provider = None
        if not _has_any("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE") and not _has_any(
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"
        ):
            provider = self._profile()
        return S3Store(
            self._bucket, client_options=options, retry_config={"max_retries": 0}, credential_provider=provider
        )

    def _profile(self) -> Any:
        """Return the credentials of a profile of `aws configure`, or of a machine at AWS, as boto3 finds them."""
        advice = self.credentials
        try:
            from obstore.auth.boto3 import Boto3CredentialProvider

            return Boto3CredentialProvider()
        except ImportError:
            advice += f"; for those of `aws configure` and of machines at AWS: {install_hint('s3')}"
        except ValueError:
            pass
        raise CredentialsError(f"{self.url}: no credentials were found; {advice}")


class AzureStorage(BucketStorage):
    """A prefix of a container of Azure Blob Storage."""

    kind = "Azure"
    example = "az://container/prefix"
    credentials = (
        "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, "
        "AZURE_USE_AZURE_CLI=true for the account of `az login`, or AZURE_SKIP_SIGNATURE=true for a public container"
    )
    _KEYS = ("ACCOUNT_KEY", "ACCESS_KEY", "SAS_TOKEN", "SAS_KEY", "TOKEN", "CLIENT_SECRET", "USE_EMULATOR")

    def _open(self, options: ClientConfig) -> ObjectStore:
        from obstore.store import AzureStore

        known = (*(f"AZURE_STORAGE_{key}" for key in self._KEYS), "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE")
        if not _has_any(*known, "AZURE_USE_AZURE_CLI", "AZURE_SKIP_SIGNATURE", "AZURE_MSI_ENDPOINT"):
            raise CredentialsError(f"{self.url}: no credentials were found; {self.credentials}")
        if os.environ.get("AZURE_STORAGE_ENDPOINT", "").startswith("http://"):
            options["allow_http"] = True
        return AzureStore(self._bucket, client_options=options, retry_config={"max_retries": 0})


class WebStorage(RemoteStorage):
    """Files of a web server; those that LISTING names are listed."""

    kind = "the web server"
    example = "https://host/prefix, without ?, # or a password"
    credentials = "dataprep reads from web servers only what anyone may read"

    def __init__(self, url: str, deadlines: Deadlines | None = None) -> None:
        if "?" in url or "#" in url:
            raise UsageError(f"{quoted(url)} does not name a folder; expected {self.example}")
        super().__init__(url, deadlines)

    def list(self, prefix: str = "", first: str = "") -> Iterator[base.ObjectInfo]:
        """List the files that LISTING names, with one request for the size of each."""
        folder = f"{base.check_prefix(prefix)}/" if prefix else ""
        try:
            text = self.read(LISTING, MAX_LISTING_BYTES).decode()
        except FileNotFoundError:
            raise StorageError(
                f"{self.url}: a web server does not list its files, and there is no {LISTING}; put one there with "
                f"`{LIST_COMMAND}`, or name a dataset of `dataprep build`"
            ) from None
        except UnicodeDecodeError as error:
            raise StorageError(f"{self.url_of(LISTING)}: not UTF-8 ({error}); make it again") from error
        names = [name for name in sorted(set(text.splitlines())) if name.startswith(folder) and name >= first]
        for start in range(0, len(names), PAGE_OBJECTS):
            page = names[start : start + PAGE_OBJECTS]
            for name, info in zip(page, self.stats(page), strict=True):
                if info is None:
                    what = f"{LISTING} names it, but it does not exist"
                    raise StorageError(f"{self.url_of(name)}: {what}; make {LISTING} again")
                yield info

    def _open(self, options: ClientConfig) -> HTTPStore:
        from obstore.store import HTTPStore

        scheme = self.url.partition("://")[0]
        options["allow_http"] = scheme == "http"
        return HTTPStore(f"{scheme}://{self._bucket}", client_options=options, retry_config={"max_retries": 0})


def _has_any(*names: str) -> bool:
    return any(os.environ.get(name) for name in names)


def _info(name: str, meta: ObjectMeta) -> base.ObjectInfo:
    """Describe an object; its version is a hash of its entity tag, else of the time when it was written."""
    written_s = meta["last_modified"].timestamp()
    tag = (meta["e_tag"] or "").removeprefix("W/").strip('"') or (str(written_s) if written_s else "")
    version = int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8]) >> 1 if tag else base.NO_VERSION
    return base.ObjectInfo(name, meta["size"], None, version=version)
