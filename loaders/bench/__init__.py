"""Rates of our loader on a user's data, for `dataprep bench`; each round is a separate process.

run.py opens the datasets and repeats the rounds; round.py is one round: the caller and the process itself.
"""
