"""Builds a fuzz target with the sanitizers, runs it, and keeps its corpus.

The target and the libjpeg-turbo of the wheels are compiled by clang, the library without its assembler code, into which
no sanitizer looks. Below `build/fuzz` the corpus grows from run to run; `keep_corpus` reduces it to what adds coverage
and puts it into the repository, where every machine begins with it.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sysconfig
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts import wheel
from tests.fuzz.seeds import write_seeds

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "fuzz"
TARGETS = ("check", "decoder", "restart")
"""Programs of this folder: of _check.c in dataprep/formats, of loaders/decode/_jpeg.c, and of _restart.c."""
SANITIZERS = ["-g", "-O2", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
COVERAGE = "-fsanitize-coverage=inline-8bit-counters,pc-table"
"""Counts edges of the library; to trace its comparisons as well would take half of the time."""
NEEDED = ("clang", "cmake", "cargo")
MOST_BYTES = 4096
"""Size of an input; a larger one has the same parts more often."""
WINDOW_BYTES = 2600
"""Size of the decoder's window, in which an input of MOST_BYTES must move on."""
MOST_S = 20
MOST_MB = 2048
"""What one input may take of time, and the fuzzer of memory."""


@dataclass(frozen=True)
class Ran:
    """What a run of the fuzzer came to."""

    runs: int
    seconds: int
    edges: int
    """Edges of the program that the corpus reaches."""
    inputs: int
    """Inputs of the corpus."""

    def __str__(self) -> str:
        return f"{self.runs:,} runs in {self.seconds} s, no finding; {self.inputs} inputs reach {self.edges} edges"


def missing() -> str:
    """Name the tools that this machine lacks."""
    return ", ".join(name for name in NEEDED if shutil.which(name) is None)


def fuzz(name: str, *, seconds: int = 0, runs: int = -1, sources: Path = ROOT) -> Ran:
    """Run a target for some seconds, or for a number of inputs.

    Args:
        name: The target, one of `TARGETS`.
        seconds: Length of the run; 0 sets no limit.
        runs: Number of inputs; -1 sets no limit.
        sources: A copy of the repository with other sources of the extensions.

    Raises:
        AssertionError: With the fuzzer's report, and where the input is that led to it.
    """
    corpus, found = open_corpus(name), WORK / "found"
    found.mkdir(exist_ok=True)
    program = build_target(name, sources)
    limits = [f"-max_len={MOST_BYTES}", f"-timeout={MOST_S}", f"-rss_limit_mb={MOST_MB}"]
    words = [program, f"-max_total_time={seconds}", f"-runs={runs}", *limits, f"-dict={HERE / 'jpeg.dict'}"]
    words += [f"-artifact_prefix={found}/{name}-", corpus]
    # libFuzzer limits the peak of its memory, into which Linux counts that of the process that starts it: a shell here.
    words = ["sh", "-c", '"$@"; exit $?', "sh", *words]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert done.returncode == 0, f"{name}: the input is in {found}\n{done.stdout[-6000:]}"
    return read_report(done.stdout)


def read_report(text: str) -> Ran:
    """Read what libFuzzer writes at its end.

    Raises:
        AssertionError: If the text is not the report of a whole run.
    """
    ended = re.search(r"^Done (\d+) runs in (\d+) second", text, re.MULTILINE)
    state = re.findall(r"\bcov: (\d+) .*? corp: (\d+)/", text)
    assert ended and state, text[-2000:]
    edges, inputs = state[-1]
    return Ran(int(ended[1]), int(ended[2]), int(edges), int(inputs))


def open_corpus(name: str) -> Path:
    """Return the folder with a target's corpus: the seeds, what the repository keeps, and what earlier runs found."""
    corpus = WORK / "corpus" / name
    write_seeds(corpus)
    if (kept := HERE / f"{name}.zip").exists():
        with zipfile.ZipFile(kept) as archive:
            archive.extractall(corpus)
    return corpus


def keep_corpus(name: str) -> int:
    """Reduce a target's corpus to inputs that add coverage, keep it in the repository, and return their number."""
    reduced = WORK / "reduced" / name
    shutil.rmtree(reduced, ignore_errors=True)
    reduced.mkdir(parents=True)
    words = [build_target(name, ROOT), "-merge=1", f"-max_len={MOST_BYTES}", reduced, open_corpus(name)]
    subprocess.run(words, check=True, capture_output=True)
    with zipfile.ZipFile(HERE / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(reduced.iterdir()):
            archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes())
    return len(list(reduced.iterdir()))


def build_target(name: str, sources: Path) -> Path:
    """Compile a target, and return the program."""
    library = sanitised_libjpeg()
    program = WORK / name if sources == ROOT else sources / name
    includes = [f"-I{library / 'include'}", f"-I{sysconfig.get_paths()['include']}"]
    # Nothing calls Python here: without the module's entry point nothing refers to its functions.
    no_module = "-DPyMODINIT_FUNC=static __attribute__((unused)) PyObject *"
    words = ["clang", *SANITIZERS, "-fsanitize=fuzzer", "-fno-sanitize-coverage=trace-cmp", "-ffp-contract=off"]
    words += [
        f"-DWINDOW_BYTES={WINDOW_BYTES}",
        no_module,
        *includes,
        sources / "tests" / "fuzz" / f"{name}.c",
        library / "lib" / "libjpeg.a",
        "-o",
        program,
    ]
    subprocess.run(words, check=True)
    return program


@cache
def sanitised_libjpeg() -> Path:
    """Return the folder with the headers and the sanitised library, which is compiled once."""
    made = WORK / f"libjpeg-{platform.machine()}"
    if (made / "lib" / "libjpeg.a").exists():
        return made
    settings = {
        "CMAKE_BUILD_TYPE": "None",
        "CMAKE_C_COMPILER": "clang",
        "CMAKE_C_FLAGS": " ".join([*SANITIZERS, COVERAGE]),
        "REQUIRE_SIMD": "OFF",
        "WITH_SIMD": "OFF",
    }
    WORK.mkdir(parents=True, exist_ok=True)
    return wheel.build_libjpeg(wheel.unpack_source(), WORK, platform.machine(), settings)
