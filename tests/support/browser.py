"""A real browser without a network, for the pages that the commands write."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NO_CHROMIUM = "chromium is not installed (Debian: apt install chromium)"
TIMEOUT_S = 120
"""A launch takes a second; on a machine that is busy with other tests, many."""
QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--proxy-server=127.0.0.1:9",  # which nobody serves: whatever is asked for, no network is needed
)


def browse(folder: Path, *arguments: str) -> str:
    """Run the browser once, with a profile of its own."""
    command = [CHROMIUM, *QUIET, f"--user-data-dir={folder / 'profile'}", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout
