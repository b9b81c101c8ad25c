"""Rates of our loader on a user's data, for `dataprep bench`; each round is a process of its own.

run.py opens the datasets and repeats the rounds; round.py is one round, on both sides of its process; table.py holds
the result and compares it with an earlier one.
"""

__all__ = ["round", "run", "table"]
