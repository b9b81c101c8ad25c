"""A Hugging Face Hub on loopback: the part of its API that reads datasets, and the ways in which it answers badly."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

TOKEN = "hf_secretsecretsecret"
Answer = tuple[int, bytes, dict[str, str]]
"""Status, body and headers."""
PAGE_FILES = 3
"""Files of a page of a listing: so few that small repositories have several."""


@dataclass
class Repository:
    """A dataset: its files by commit, its branches, and who may read it."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    card: object = field(default_factory=dict)
    is_private: bool = False
    is_gated: bool = False

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Put files as a branch's next commit, and return its hash."""
        sha = hashlib.sha1(json.dumps([sorted(files), len(self.commits)]).encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.branches[branch] = sha
        return sha


class HubServer(ThreadingHTTPServer):
    """The server; set `faults` for that many answers of 503, and `cut` for that many bodies that break off."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.faults = self.cut = 0
        self.described: object = None
        """Sent in place of a repository's description."""
        self.requests: list[str] = []
        self.tokens_elsewhere: list[str] = []
        """Tokens that reached the host of the files, which is another one."""

    def add(self, name: str, folder: Path, **more: object) -> Repository:
        """Put the files of a folder as a repository."""
        repository = self.repositories[name] = Repository(**more)
        repository.commit({path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")})
        return repository

    @property
    def environment(self) -> dict[str, str]:
        """What points huggingface_hub at this server."""
        return {"HF_ENDPOINT": self.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        status, body, headers = self._answer()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if status == 206 and self.server.cut:
            self.server.cut -= 1
            body = body[: len(body) // 2]
            self.close_connection = True
        self.wfile.write(body)

    def _answer(self) -> Answer:
        parts = urlsplit(self.path)
        if self.server.faults:
            self.server.faults -= 1
            return 503, b"busy", {}
        if parts.path.startswith("/files/"):
            return self._file(parts.path)
        found = re.fullmatch(r"/(?:api/)?datasets/([^/]+/[^/]+)/(revision|tree|resolve)/([^/]+)/?(.*)", parts.path)
        if found is None:
            return 404, b"no such page", {}
        name, kind, revision, path = map(unquote, found.groups())
        return self._repository(name, kind, revision, path)

    def _repository(self, name: str, kind: str, revision: str, path: str) -> Answer:
        repository = self.server.repositories.get(name)
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repository is None or (repository.is_private and not known):
            return _refused(401, "RepoNotFound")
        if repository.is_gated and not known and kind == "resolve":
            return _refused(403, "GatedRepo")
        sha = repository.branches.get(revision, revision)
        files = repository.commits.get(sha)
        if files is None:
            return _refused(404, "RevisionNotFound")
        if kind == "revision":
            return _json(self.server.described or {"id": name, "sha": sha, "cardData": repository.card})
        if kind == "tree":
            return self._tree(files, path)
        if path not in files:
            return _refused(404, "EntryNotFound")
        # To another host, as the real Hub does; no token may reach it.
        there = f"http://localhost:{self.server.server_port}/files/{name}/{sha}/{quote(path)}"
        return 302, b"", {"Location": there}

    def _tree(self, files: Mapping[str, bytes], folder: str) -> Answer:
        names = sorted(name for name in files if name.startswith(f"{folder}/" if folder else ""))
        if not names:
            return _refused(404, "EntryNotFound")
        entries: list[dict[str, object]] = [{"type": "directory", "oid": "0" * 40, "path": "data", "size": 0}]
        entries += [{"type": "file", "oid": "0" * 40, "path": name, "size": len(files[name])} for name in names]
        there = urlsplit(self.path)
        first = int(parse_qs(there.query).get("cursor", ["0"])[0])
        status, body, headers = _json(entries[first : first + PAGE_FILES])
        if first + PAGE_FILES < len(entries):
            following = f"{self.server.url}{there.path}?recursive=True&cursor={first + PAGE_FILES}"
            headers["Link"] = f'<{following}>; rel="next"'
        return status, body, headers

    def _file(self, path: str) -> Answer:
        if token := self.headers.get("Authorization"):
            self.server.tokens_elsewhere.append(token)
        owner, name, sha, file = unquote(path).removeprefix("/files/").split("/", 3)
        data = self.server.repositories[f"{owner}/{name}"].commits[sha][file]
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
        start, last = int(asked[1]), int(asked[2])
        if start >= len(data):
            return 416, b"", {}
        body = data[start : last + 1]
        return 206, body, {"Content-Range": f"bytes {start}-{start + len(body) - 1}/{len(data)}"}


def _refused(status: int, code: str) -> Answer:
    return status, b"{}", {"X-Error-Code": code, "X-Error-Message": f"the message of {code}"}


def _json(document: object) -> Answer:
    return 200, json.dumps(document).encode(), {}


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """Serve while the block lasts."""
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
