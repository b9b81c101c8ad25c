"""Count the files of the packages that a command enters: those in which it calls a function.

    .venv/bin/python -m scripts.entered              a table of all ways
    .venv/bin/python -m scripts.entered convert      the files that one way enters

Only this process is watched, in all its threads; importing a module does not count. The second column adds files
whose classes are made in imports. Of a loader, the way ends with the first batch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("dataprep", "loaders", "pipelines", "train")
WAYS = {
    "build folder": 'group(["build", "folder", "--source", "pets", "--output", "folder", *FORMAT])',
    "build coco-dup5": 'group(["build", "coco-dup5", "--source", "coco", "--output", "dup5", "--allow-partial", '
    '"--max-reject-ratio", "1", *FORMAT])',
    "convert": 'group(["convert", "folder", "--output", "small", "--resize", "32", *FORMAT])',
    "build laion": 'group(["build", "laion", "--source", "laion/laion.parquet", "--output", "fetched", "--contact", '
    '"mailto:me@example.org", "--allow-network", "127.0.0.0/8", *FORMAT])',
    "verify": 'group(["verify", "folder", "--workers", "1"])',
    "open_loader": 'next(iter(loaders.open_loader("folder", batch_size=2, image_size=32)))',
}
"""Programs by the name of the way; a later one may read what an earlier one has written."""
PROGRAM = """
import contextlib, inspect, json, sys, threading
sys.path.insert(0, {root!r})
FORMAT = ("--format", "webdataset", "--workers", "1")
entered = {{}}
packages = tuple(f"{root}/{{name}}/" for name in {packages!r})
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(packages):
        name = code.co_filename.removeprefix("{root}/")
        entered[name] = entered.get(name, False) or bool(code.co_flags & inspect.CO_OPTIMIZED)  # a function, no class
import loaders
from dataprep.cli import group
threading.setprofile_all_threads(note) if hasattr(threading, "setprofile_all_threads") else threading.setprofile(note)
sys.setprofile(note)
with contextlib.suppress(SystemExit):
    {program}
sys.setprofile(None)
json.dump(entered, open({output!r}, "w"))
"""


def entered(program: str, folder: Path) -> dict[str, bool]:
    """Run a program in a folder; return the files that it enters in order, each with whether a function is called."""
    output = folder / "entered.json"
    text = PROGRAM.format(root=str(ROOT), packages=PACKAGES, program=program, output=str(output))
    run = subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=600)
    if run.returncode:
        raise SystemExit(run.stderr[-2000:])
    found: dict[str, bool] = json.loads(output.read_text())
    return found


def ways() -> dict[str, dict[str, bool]]:
    """Return what each way enters, on small originals made for it."""
    from dataprep.demo.make import demo_server, write_demo, write_demo_laion
    from tests.support.own_data import write_pets

    with tempfile.TemporaryDirectory(prefix="dataprep-entered-") as name:
        folder = Path(name)
        write_pets(folder / "pets")
        write_demo("coco", folder / "coco", images=60, odd=False)
        with demo_server(folder / "laion", 0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            write_demo_laion(folder / "laion", f"http://127.0.0.1:{server.server_port}", 20)
            found = {way: entered(program, folder) for way, program in WAYS.items()}
            server.shutdown()
        return found


def main() -> None:
    found = ways()
    if len(sys.argv) > 1:
        print(*(file for file, is_called in found[" ".join(sys.argv[1:])].items() if is_called), sep="\n")
        return
    print("| way | files entered | with classes |\n|---|---|---|")
    for way, files in found.items():
        print(f"| {way} | {sum(files.values())} | {len(files)} |")


if __name__ == "__main__":
    main()
