"""Runs a command under the guard: its proxy, its environment, its processes, and their end when the budget ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from dataprep.cloud.prices import Prices, published_prices
from dataprep.errors import UsageError, install_hint
from dataprep.guard.clients import client_environment, usual_certificates
from dataprep.guard.escapes import ENDED_STATES, Watch, states_of_group
from dataprep.guard.ledger import Budget, Ledger
from dataprep.guard.places import Places
from dataprep.guard.proxy import GuardProxy
from dataprep.guard.report import GuardReport, report_of
from dataprep.messages import usd
from dataprep.storage.gcs_client import emulator_url

BUDGET_ENDED, NOT_EXECUTABLE, NOT_FOUND = 124, 126, 127
"""Exit codes, as those of timeout(1)."""
SIGNALLED = 128
"""Exit code of a command that a signal ended, less the signal's number."""
REFUSED = 1
"""Exit code if reads were refused and the command ended as if they had not been."""
GRACE_S = 10.0
ANSWER_S = 0.5
"""Time in which the command can still report the refused read before it is asked to end."""
SAMPLE_S = 0.25
POLL_S = 0.05
"""Interval at which the end of the command's processes is looked for."""
_BUNDLE = "certificates.pem"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    """Limits of a guarded run.

    Raises:
        UsageError: There is a limit in USD, and the reader's place is unknown, so that no price is known.
    """

    where: str | None
    """Zone or region of the reader; None if unknown."""
    budget: Budget = field(default_factory=Budget)
    prices: Prices = field(default_factory=published_prices)
    grace_s: float = GRACE_S
    """Time from SIGTERM to SIGKILL for all processes of the command when the budget has ended; also for those that a
    signal to the guard, passed on, has left running when the command itself has ended."""

    def __post_init__(self) -> None:
        if self.budget.max_usd is not None and self.where is None:
            raise UsageError(
                f"a limit of {usd(self.budget.max_usd)} needs prices, and these need the reader's place: this machine "
                "is not in Google Cloud; give its zone or region, e.g. --zone us-central1-a (in Python zone=)"
            )


class RunningGuard:
    """A proxy that listens, and what leads a process through it."""

    def __init__(self, proxy: GuardProxy, environment: Mapping[str, str], spent: asyncio.Event) -> None:
        self.environment = environment
        """Variables to set for processes under the guard."""
        self.spent = spent
        """Set when a read was refused because of its price."""
        self._proxy = proxy
        self._watch: Watch | None = None

    def report(self) -> GuardReport:
        """Return the report on what has happened so far."""
        return report_of(self._proxy, self._watch.found if self._watch else set())

    async def watch(self, root: int) -> None:
        """Look for connections of a process, and of all that it starts, that pass the guard by; until cancelled."""
        emulator = urlsplit(self._proxy.emulator)
        upstream = (emulator.hostname, emulator.port) if emulator.hostname and emulator.port else None
        self._watch = Watch(root, upstream)
        while True:
            self._watch.sample()
            await asyncio.sleep(SAMPLE_S)


@asynccontextmanager
async def running_guard(settings: GuardSettings, inherited: Mapping[str, str]) -> AsyncIterator[RunningGuard]:
    """Start a proxy, which ends with the block.

    Args:
        settings: Limits.
        inherited: Environment of the processes that will be guarded.

    Raises:
        UsageError: A package is missing, or the environment leads elsewhere already.
    """
    try:
        import aiohttp  # noqa: F401
        import cryptography  # noqa: F401
    except ImportError as error:
        raise UsageError(f"the guard needs {error.name}; install it with: {install_hint('guard')}") from None
    spent = asyncio.Event()
    ledger = Ledger(settings.budget, settings.prices)
    proxy = GuardProxy(ledger, Places(settings.where, settings.prices), emulator_url(), spent.set)
    with tempfile.TemporaryDirectory(prefix="dataprep-guard-") as folder:
        bundle = Path(folder, _BUNDLE)
        bundle.write_bytes(usual_certificates(inherited) + b"\n" + proxy.authority.pem())
        await proxy.start()
        try:
            yield RunningGuard(proxy, client_environment(proxy.url, bundle, inherited), spent)
        finally:
            await proxy.close()


async def run_guarded(
    command: Sequence[str], settings: GuardSettings, *, stdout: int | None = None
) -> tuple[int, GuardReport]:
    """Run a command under the guard, and return the exit code to end with, and the report.

    Args:
        command: Words of the command.
        settings: Limits.
        stdout: Descriptor for the command's standard output; None for this process's own.

    Raises:
        UsageError: The guard cannot start.
    """
    async with running_guard(settings, os.environ) as guard, _Signals() as signals:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, env={**os.environ, **guard.environment}, stdout=stdout, start_new_session=True
            )
        except OSError as error:
            print(f"dataprep guard: {command[0]}: {error.strerror}", file=sys.stderr)
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE, guard.report()
        watch = asyncio.create_task(guard.watch(process.pid))
        try:
            signals.pass_on_to(process.pid)
            code = await _end_of(process, guard, settings.grace_s)
            if signals.caught:
                await _end_of_group(process.pid, settings.grace_s)
        finally:
            watch.cancel()
            _signal_group(process.pid, signal.SIGKILL)  # what the command has left running
        report = guard.report()
    if report.refused and code == 0:
        code = REFUSED
    return code, report


async def _end_of(process: asyncio.subprocess.Process, guard: RunningGuard, grace_s: float) -> int:
    """Return the exit code when the command has ended, by itself or because the budget has."""
    end, spent = asyncio.create_task(process.wait()), asyncio.create_task(guard.spent.wait())
    await asyncio.wait((end, spent), return_when=asyncio.FIRST_COMPLETED)
    spent.cancel()
    if not guard.spent.is_set():
        return _shell_code(await end)
    await asyncio.wait((end,), timeout=ANSWER_S)
    _signal_group(process.pid, signal.SIGTERM)
    await _end_of_group(process.pid, grace_s)
    _signal_group(process.pid, signal.SIGKILL)
    await end
    return BUDGET_ENDED


async def _end_of_group(leader: int, patience_s: float) -> None:
    """Wait for the end of all processes of the command's group, which may outlive the first one, but not for ever."""
    deadline_s = time.monotonic() + patience_s
    while _group_runs(leader) and (left_s := deadline_s - time.monotonic()) > 0:
        await asyncio.sleep(min(POLL_S, left_s))


def _group_runs(leader: int) -> bool:
    """Return whether a process of the group can still be signalled.

    A zombie counts as ended: in a container whose first process does not reap orphans, it stays for ever.
    """
    try:
        os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return False
    states = states_of_group(leader)
    return not states or not states <= ENDED_STATES


def _shell_code(code: int) -> int:
    return code if code >= 0 else SIGNALLED - code


def _signal_group(leader: int, number: int) -> None:
    """Send a signal to all processes of the command's group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


class _Signals:
    """Ctrl-C, SIGTERM and SIGHUP, which are passed on to the command: it then ends as it would without the guard.

    They are caught before there is a command, because one that comes while it starts would leave it running.
    """

    def __init__(self) -> None:
        self.caught: set[int] = set()
        self._leader: int | None = None

    async def __aenter__(self) -> Self:
        for number in _FORWARDED:
            asyncio.get_running_loop().add_signal_handler(number, self._catch, number)
        return self

    async def __aexit__(self, *error: object) -> None:
        for number in _FORWARDED:
            asyncio.get_running_loop().remove_signal_handler(number)

    def pass_on_to(self, leader: int) -> None:
        """Send what was caught, and what will be, to all processes of a command's group."""
        self._leader = leader
        for number in self.caught:
            _signal_group(leader, number)

    def _catch(self, number: int) -> None:
        self.caught.add(number)
        if self._leader is not None:
            _signal_group(self._leader, number)
