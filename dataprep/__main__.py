"""Runs the command line as `python -m dataprep`."""

from dataprep.cli import main

if __name__ == "__main__":
    main()
