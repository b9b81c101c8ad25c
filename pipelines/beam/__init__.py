"""Builds on Apache Beam: a linear graph of shard indexes, `Create | Reshuffle | ParDo(build_shard)`, for every dataset.

The graph is small whatever the dataset, because its elements are numbers (docs/decisions/0002). It runs in its own
process, which the driver watches; with every runner, progress is read from the receipts. Runners that lose data are
refused by name.
"""
