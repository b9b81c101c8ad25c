"""Runs the command line as `python -m dataprep`; a Python that lacks what is needed is refused in one line."""

import sys

from dataprep.host.supported import unsupported


def main() -> None:
    """Run the command line, if this Python can."""
    problem = unsupported()
    if not problem:
        try:
            from dataprep.cli import main as run
        except ModuleNotFoundError as error:
            problem = (
                f"package {error.name} is not installed for {sys.executable}; install dataprep with it (pip install .) "
                "or, in a checkout, run make setup and then .venv/bin/dataprep"
            )
        else:
            run()
    print(f"dataprep: {problem}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
