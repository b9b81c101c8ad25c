"""Runs the command line: `dataprep`, or `python -m dataprep`. A Python that lacks what it needs is refused in one line.

Every worker process imports this module again, because multiprocessing runs the program's file there: so it imports the
command line only when it is run.
"""

import sys
from contextlib import suppress

from dataprep import __version__
from dataprep.host.program import leave_current_folder, unsupported

WORKER_MODULES = (
    "dataprep.builder.fork_server", "dataprep.builder.growth", "numpy", "pyarrow.parquet", "simplejpeg",
)  # fmt: skip
"""What workers of builds of archives and folders import, which takes as long as the imports of the command itself."""


def will_build(arguments: list[str]) -> bool:
    """Return whether these arguments of the command line probably build on this machine."""
    others = {"--dry-run", "--runner", "--help", "--help-all", "-h"}
    return arguments[:1] == ["build"] and "--source" in arguments and not others & {*arguments}


def main() -> None:
    """Run the command line, if this Python can."""
    leave_current_folder()
    problem = unsupported()
    if not problem and sys.argv[1:] == ["--version"]:  # as click prints it, whose import takes longer than the rest
        print(f"dataprep, version {__version__}")
        return
    if not problem:
        try:
            if will_build(sys.argv[1:]):
                from dataprep.host.processes import start_fork_server

                with suppress(OSError):  # the pool says what to do
                    start_fork_server(WORKER_MODULES)
            from dataprep.cli import main as run
        except ModuleNotFoundError as error:
            problem = (
                f"package {error.name} is not installed for {sys.executable}; install dataprep with it (pip install .) "
                "or, in a checkout, run make setup and then .venv/bin/dataprep"
            )
        except KeyboardInterrupt:
            print("dataprep: interrupted", file=sys.stderr)
            sys.exit(130)
        else:
            run()
    print(f"dataprep: {problem}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
