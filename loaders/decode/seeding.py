"""Separate processes for transforms whose libraries draw from process-wide random generators.

Seeding those generators in the user's process would change the user's own draws, and the user's draws would change the
transform's. So a thread of a loader sends an image to a process that only runs the transform, and waits for the result.
In that process, in a loader's worker and in a DataLoader's worker, the generators are seeded for each image.

    decoding thread -> process    (seed, arguments)
    process -> decoding thread    (result | exception, traceback, CPU seconds)

Such a process, like a worker of a loader, is a new interpreter that imports the user's program before it works. Code
that opens a loader at the top of that program, outside of `if __name__ == "__main__":`, then runs again in the worker.
`end_if_worker` silently ends the worker there with a special exit code, and the loader's process reports the mistake
once.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import pickletools
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import spawn
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from dataprep.arrays import np
from dataprep.errors import StorageError, UsageError
from dataprep.host.processes import WORKER_ENVIRONMENT
from dataprep.messages import one_line

WORKER = "loader-worker"
"""Prefix of the names of a loader's worker processes."""
UNGUARDED = 87
"""Exit code of one of our processes that opened a loader while it imported the user's program."""
POLL_S = 1.0
"""Interval at which an idle process checks that its parent still runs, seconds."""
_ENVIRONMENT = WORKER_ENVIRONMENT | {"OMP_NUM_THREADS": "1"}
"""One process runs for each decoding thread. If each also had a thread per core, torchvision's RandAugment would take
46 to 82 ms an image on two cores instead of 1.3 to 2.8."""
_IN_A_MODULE = "define it, and the functions that it uses, in a module of your own, and import it from there"
_MAIN = ("init_main_from_name", "init_main_from_path")
_serving = False
"""Whether this process runs a transform for another process."""
_one_at_a_time = threading.Lock()
"""Held while generators of the process are seeded."""
_elsewhere = threading.local()


class SeededTransform(ABC):
    """A transform whose library draws from the generators of Python, NumPy or PyTorch; picklable."""

    _helpers: _Helpers | None = None

    @abstractmethod
    def _draw(self, seed: int, *arguments: Any) -> Any:
        """Transform an image in a process whose generators of Python and NumPy are seeded with `seed`."""

    def _seeded(self, rng: np.random.Generator, *arguments: Any) -> Any:
        """Return the result of `_draw`, with a seed from the sample's generator."""
        seed = int(rng.integers(2**32))
        if is_ours():
            with seeded(seed):
                return self._draw(seed, *arguments)
        if self._helpers is None or self._helpers.pid != os.getpid():
            self._helpers = _Helpers(pickled(self))
        return self._helpers.call(seed, arguments)

    def close(self) -> None:
        """End idle processes; the transform starts new ones when it is used again."""
        if self._helpers is not None:
            self._helpers.close()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_helpers"}


def is_worker() -> bool:
    """Whether this process is a loader's worker; a worker reaches a loader only by importing the user's program."""
    return _serving or multiprocessing.current_process().name.startswith(WORKER)


def is_ours() -> bool:
    """Whether this process is ours, so that no user code draws here while a transform runs."""
    if is_worker():
        return True
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and torch_data.get_worker_info() is not None


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of Python and NumPy, for one thread at a time, and restore them at the end of the block."""
    with _one_at_a_time:
        states = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def pickled(transform: object) -> bytes:
    """Return a pickled transform for another process. Raises UsageError if the other process could not load the
    transform."""
    try:
        data = pickle.dumps(transform)
    except Exception as error:
        raise not_portable(transform, error) from error
    check_main(data, transform)
    return data


def not_portable(transform: object, error: Exception) -> UsageError:
    """Return the error for a transform that cannot be pickled."""
    return UsageError(
        f"transform {_name(transform)} cannot be sent to another process ({one_line(error)}); {_IN_A_MODULE}"
    )


def check_main(data: bytes, transform: object) -> None:
    """Raise UsageError for a pickled transform of the program that other processes cannot import."""
    main = sys.modules["__main__"]
    is_file = getattr(main, "__spec__", None) is not None or getattr(main, "__file__", "<stdin>") != "<stdin>"
    if not is_file and any(argument == "__main__" for _, argument, _ in pickletools.genops(data)):
        raise UsageError(
            f"transform {_name(transform)} is defined in a notebook, or in a program without a file, which other "
            f"processes cannot import; {_IN_A_MODULE}"
        )


def thread_time() -> float:
    """Return the CPU time of this thread, and of the processes that ran transforms for it, seconds."""
    return time.thread_time() + getattr(_elsewhere, "cpu_s", 0.0)


class _Helpers:
    """Processes that run one transform: one for each thread that has called it at the same time."""

    def __init__(self, transform: bytes) -> None:
        self.pid = os.getpid()
        self._transform = transform
        self._idle: list[_Helper] = []
        self._all: list[_Helper] = []
        weakref.finalize(self, _end, self._all, self.pid)

    def call(self, seed: int, arguments: tuple[Any, ...]) -> Any:
        """Run the transform in one of the processes."""
        try:
            helper = self._idle.pop()
        except IndexError:
            helper = _Helper(self._transform)
            self._all.append(helper)
        try:
            result, text, cpu_s = helper.call(seed, arguments)
        except BaseException:
            self._all.remove(helper)
            helper.end()
            raise
        self._idle.append(helper)
        _elsewhere.cpu_s = getattr(_elsewhere, "cpu_s", 0.0) + cpu_s
        if isinstance(result, BaseException):
            raise result from _RemoteError(text)
        return result

    def close(self) -> None:
        """End idle processes."""
        with suppress(IndexError):
            while True:
                helper = self._idle.pop()
                self._all.remove(helper)
                helper.end()


class _RemoteError(Exception):
    """Traceback of an error in the other process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Helper:
    """One process that runs a transform."""

    def __init__(self, transform: bytes) -> None:
        self._pipe, theirs = Pipe()
        path = [each for each in sys.path if each not in ("", ".")]
        # The current folder is last, so that none of its files is taken for a module of Python or of a library.
        path += [str(Path.cwd())] * (len(path) < len(sys.path))
        program = (
            f"import sys; sys.path[:] = {path!r}; from loaders.decode.seeding import serve; "
            f"serve({theirs.fileno()}, {os.getpid()})"
        )
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
        self._process = subprocess.Popen(
            [spawn.get_executable(), "-P", *flags, "-c", program],
            env=_ENVIRONMENT | os.environ,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        prepared = spawn.get_preparation_data(WORKER)
        with suppress(OSError):  # the call reports that the process has died
            self._pipe.send(({name: prepared[name] for name in _MAIN if name in prepared}, transform))

    def call(self, seed: int, arguments: tuple[Any, ...]) -> tuple[Any, str, float]:
        """Return the answer of the process: result, traceback and CPU seconds.

        Raises:
            StorageError: The process has died.
            UsageError: The process opened a loader while it imported the user's program.
        """
        try:
            self._pipe.send((seed, arguments))
            answer: tuple[Any, str, float] = self._pipe.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            if code == UNGUARDED:
                raise UsageError(
                    "the transform is defined in the program, which the process that runs it imports; put the code "
                    'that uses the loader under `if __name__ == "__main__":`, or define the transform in its own module'
                ) from None
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise StorageError(
                f"loader: the process of a transform died ({how}); resume from the last state, with fewer threads if "
                "memory ran out"
            ) from None
        return answer

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()


def _end(helpers: list[_Helper], pid: int) -> None:
    for helper in helpers if pid == os.getpid() else ():  # a forked process has only copies
        helper.end()


def serve(descriptor: int, parent: int) -> None:
    """Run a transform for the parent process, until that has ended or closes the pipe."""
    global _serving
    _serving = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    pipe = Connection(descriptor)
    with suppress(EOFError, OSError):
        main, data = pipe.recv()
        transform, fault = None, None
        try:
            if any(argument == "__main__" for _, argument, _ in pickletools.genops(data)):
                spawn.prepare(main)
            transform = pickle.loads(data)
        except Exception as error:  # noqa: BLE001  raised in the parent
            fault = error, traceback.format_exc(), 0.0
        while True:
            while not pipe.poll(POLL_S):
                if os.getppid() != parent:
                    return
            seed, arguments = pipe.recv()
            _answer(pipe, fault or _result(transform, seed, arguments))


def _result(transform: Any, seed: int, arguments: tuple[Any, ...]) -> tuple[Any, str, float]:
    cpu_from_s = time.process_time()
    try:
        with seeded(seed):
            return transform._draw(seed, *arguments), "", time.process_time() - cpu_from_s
    except Exception as error:  # noqa: BLE001  raised in the parent
        return error, traceback.format_exc(), time.process_time() - cpu_from_s


def _answer(pipe: Connection[Any, Any], answer: tuple[Any, str, float]) -> None:
    result, text, cpu_s = answer
    try:
        if isinstance(result, BaseException):
            pickle.loads(pickle.dumps(result))
        data = pickle.dumps(answer)
    except Exception:  # noqa: BLE001  an error of any class, with any arguments
        data = pickle.dumps((RuntimeError(f"{type(result).__name__}: {result}"[:500]), text, cpu_s))
    pipe.send_bytes(data)


def _name(transform: object) -> str:
    kind = transform if hasattr(transform, "__qualname__") else type(transform)
    return str(kind.__qualname__)


_ADVICE = 'put the code that uses the loader under `if __name__ == "__main__":`, or leave `processes` out'


def end_if_worker() -> None:
    """End this process if it is a worker: a worker opens a loader only by importing a program that opens one."""
    if is_worker():
        os._exit(UNGUARDED)  # the program's exit handlers must not run twice


def check_program(processes: int) -> None:
    """Raise UsageError if workers could not import the program, which came through a pipe."""
    if getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
        raise UsageError(
            f"processes={processes}: each worker process imports the program, so it must be a file, got <stdin>; "
            f"write it to a file and {_ADVICE}"
        )


def unguarded(processes: int) -> UsageError:
    """Return the error for a worker that ended with exit code UNGUARDED."""
    return UsageError(
        f"processes={processes}: each worker process imports the program, and opened its loader again; {_ADVICE}"
    )
