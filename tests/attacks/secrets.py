"""A secret that is given to `dataprep tpu run --env` is looked for wherever another user could find it."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from dataprep.cli import group
from tests.attacks import Attack
from tests.support.fake_gcloud import fake_gcloud

SECRET = "hunter2-the-secret-of-this-attack"
RUN = ("tpu", "run", "my-tpu", "--zone", "us-central2-b", "--run", "r", "--poll-s", "0.2")


def _command_lines() -> list[str]:
    """Return the command lines of all processes, as any user sees them."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return lines


def _look_for_secret(seen: list[str], done: threading.Event) -> None:
    while not done.is_set():
        seen.extend(line for line in _command_lines() if SECRET in line)
        time.sleep(0.1)


def variables(folder: Path) -> str:
    """Arguments of every process while a run begins and ends; files, output and errors of it, of a dry run too."""
    with pytest.MonkeyPatch.context() as patch, fake_gcloud(folder / "cloud", patch) as cloud:
        patch.setenv("TOKEN", SECRET)
        patch.chdir(folder)
        cloud.add_tpu("my-tpu", workers=2, acceleratorType="v4-16")
        cloud.drop(" start ", how="after", worker=1)
        seen: list[str] = []
        done = threading.Event()
        looking = threading.Thread(target=_look_for_secret, args=(seen, done))
        looking.start()
        said = []
        try:
            for options, words in (
                ((), ("sh", "-c", 'test -n "$TOKEN"')),
                (("--dry-run",), ("true",)),
                ((), ("false",)),
            ):
                result = CliRunner().invoke(group, [*RUN, *options, "--env", "TOKEN", "--", *words])
                said.append(f"{result.output}{result.exception!r}")
        finally:
            done.set()
            looking.join()
        assert "run r had a different command" in said[2], said[2]
        assert not seen, f"in the arguments of a process: {seen[0][:200]}"
        assert SECRET not in "".join(said), "printed"
        assert SECRET not in json.dumps(cloud.calls()), "in gcloud's arguments"
        found = [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
        assert len(found) == 2, found
        assert all(path.stat().st_mode & 0o077 == 0 and path.stat().st_uid == os.getuid() for path in found)
    return "in no argument, output or file for others"


ATTACKS = [Attack("a run's variables", variables, sampled=True)]
