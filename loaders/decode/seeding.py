"""Transforms whose libraries draw from random generators of a whole process, run in processes where nothing else draws.

Seeding the generators of the user's process would overwrite the user's own draws, and the user's thread would take
draws of the transform. So a thread of a loader sends an image to a process of the transform's own, and waits for the
result. There, in a loader's worker process and in that of a DataLoader, the generators are seeded for each image.

    decoding thread -> process    (seed, arguments)
    process -> decoding thread    (result | exception, traceback, CPU seconds)

Such a process, like a worker of a loader, is a new interpreter that imports the user's program before it works. Code
that opens a loader at the top of that program, outside of `if __name__ == "__main__":`, is then run again in the
worker. `end_if_worker` ends the worker there without a word, with an exit code by which the loader's process knows what
is wrong, and says it once.
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
from typing import TYPE_CHECKING, Any

from dataprep.errors import StorageError, UsageError
from dataprep.host.processes import WORKER_ENVIRONMENT
from dataprep.messages import one_line

if TYPE_CHECKING:
    import numpy as np

WORKER = "loader-worker"
"""Beginning of the names of a loader's worker processes."""
UNGUARDED = 87
"""Exit code of a process of ours that came to a loader while it imported the user's program."""
POLL_S = 1.0
"""Interval at which a process without work looks whether its parent still runs, seconds."""
_ENVIRONMENT = WORKER_ENVIRONMENT | {"OMP_NUM_THREADS": "1"}
"""There are as many processes as threads that decode: with a thread for each core in every one, RandAugment of
torchvision took 46 to 82 ms an image on two cores in place of 1.3 to 2.8."""
_IN_A_MODULE = "define it, and the functions that it uses, in a module of your own, and import it from there"
_MAIN = ("init_main_from_name", "init_main_from_path")
_serving = False
"""Whether this process runs a transform for another one."""
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
        """Return the result of `_draw`, with a seed from a sample's own generator."""
        seed = int(rng.integers(2**32))
        if is_ours():
            with seeded(seed):
                return self._draw(seed, *arguments)
        if self._helpers is None or self._helpers.pid != os.getpid():
            self._helpers = _Helpers(pickled(self))
        return self._helpers.call(seed, arguments)

    def close(self) -> None:
        """End processes that are idle; a transform that is used again starts new ones."""
        if self._helpers is not None:
            self._helpers.close()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_helpers"}


def is_worker() -> bool:
    """Whether this process is a loader's; it comes to a loader only where it imports the user's program."""
    return _serving or multiprocessing.current_process().name.startswith(WORKER)


def is_ours() -> bool:
    """Whether no code of the user draws in this process while a transform runs."""
    if is_worker():
        return True
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and torch_data.get_worker_info() is not None


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of Python and NumPy, for one thread at a time, and restore them at the end of the block."""
    import numpy as np

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
    """Return a transform for a process of its own.

    Raises:
        UsageError: The process could not load it.
    """
    try:
        data = pickle.dumps(transform)
    except Exception as error:
        raise not_portable(transform, error) from error
    check_main(data, transform)
    return data


def not_portable(transform: object, error: Exception) -> UsageError:
    """Return the error about a transform that cannot be pickled."""
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
    """Processes that run one transform: as many as threads have called it at once."""

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
        """End those without work."""
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
        # Last, so that no file of the current folder is taken for a module of Python or of a library.
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
        with suppress(OSError):  # the call says that it has died
            self._pipe.send(({name: prepared[name] for name in _MAIN if name in prepared}, transform))

    def call(self, seed: int, arguments: tuple[Any, ...]) -> tuple[Any, str, float]:
        """Return what the process answers.

        Raises:
            StorageError: It has died.
            UsageError: It came to a loader while it imported the user's program.
        """
        try:
            self._pipe.send((seed, arguments))
            answer: tuple[Any, str, float] = self._pipe.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            if code == UNGUARDED:
                raise UsageError(
                    "the transform is defined in the program, which the process that runs it imports; put what uses "
                    'the loader under `if __name__ == "__main__":`, or define the transform in a module of its own'
                ) from None
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise StorageError(
                f"loader: the process of a transform died ({how}); resume from the last state, with fewer threads "
                "where memory ran out"
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


_ADVICE = 'put what uses the loader under `if __name__ == "__main__":`, or leave `processes` out'


def end_if_worker() -> None:
    """End this process if it is a worker, which opens no loader unless it imports a program that opens one."""
    if is_worker():
        os._exit(UNGUARDED)  # nothing that the program does at its end is to happen twice


def check_program(processes: int) -> None:
    """Raise UsageError if workers could not import the program, which came through a pipe."""
    if getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
        raise UsageError(
            f"processes={processes}: each worker process imports the program, which must be a file, got <stdin>; "
            f"write it to a file and {_ADVICE}"
        )


def unguarded(processes: int) -> UsageError:
    """Return the error about a worker that ended with UNGUARDED."""
    return UsageError(
        f"processes={processes}: each worker process imports the program, and came to its loader again; {_ADVICE}"
    )
