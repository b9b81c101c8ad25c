"""Builds on Apache Beam: a linear graph of shard indexes, `Create | Reshuffle | ParDo(build_shard)`, for every dataset.

The graph is small whatever the dataset, because its elements are numbers (docs/decisions/0002). It runs in a process of
its own that the driver watches, and progress comes from the receipts, for every runner alike. Runners that lose data
are refused by name.
"""
