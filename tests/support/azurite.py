"""Azure Blob Storage on loopback: Azurite, Microsoft's emulator, which npm installs into build/azurite."""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.selection import ROOT
from tests.support.waiting import wait_for

VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Key of Azurite's only account, which its documentation states."""
PORT = 10_101


def installed() -> Path:
    """Install Azurite, unless it is there, and return its program."""
    folder = ROOT / "build/azurite"
    program = folder / "node_modules/.bin/azurite-blob"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        words = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"azurite@{VERSION}"]
        subprocess.run(words, check=True, capture_output=True)
    return program


@contextmanager
def azurite(folder: Path, container: str) -> Iterator[dict[str, str]]:
    """Serve one empty container while the block lasts; yields the environment that points at it."""
    url = f"http://127.0.0.1:{PORT}/{ACCOUNT}"
    words = [str(installed()), "--silent", "--skipApiVersionCheck", "--blobPort", str(PORT), "--location", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: _made(url, container))
            names = {"ACCOUNT_NAME": ACCOUNT, "ACCOUNT_KEY": KEY, "ENDPOINT": url}
            yield {f"AZURE_STORAGE_{name}": value for name, value in names.items()}
        finally:
            process.terminate()


def _made(url: str, container: str) -> bool:
    """Create a container, which obstore cannot, and return whether the server answered."""
    now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = f"x-ms-date:{now}\nx-ms-version:2021-08-06"
    text = f"PUT{chr(10) * 12}{headers}\n/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    asked = urllib.request.Request(f"{url}/{container}?restype=container", method="PUT")
    for name, value in (line.split(":", 1) for line in headers.splitlines()):
        asked.add_header(name, value)
    asked.add_header("Authorization", f"SharedKey {ACCOUNT}:{signature}")
    asked.add_header("Content-Length", "0")
    try:
        with urllib.request.urlopen(asked, timeout=10):
            return True
    except urllib.error.HTTPError:
        raise
    except OSError:
        return False
