"""Engines, which build the shards of a dataset, on this machine or on many.

    engines.py   the interface of an engine to `dataprep build`; the engines by name; the part that a run builds
    local.py     the pool of processes of this machine, for all shards or for one of several parts
    task.py      a shard as a task on a node of Ray or Spark
    ray/         a Ray cluster; spark/: Apache Spark
    beam/        Apache Beam's runners, the only modules that import Beam

Every engine runs `build_shard`, or its first part `begin_shard`, of `dataprep/builder/recipe.py` for missing shards, so
all of them write the same bytes. An engine's module is imported when `runner` names it, since its library
may be absent and takes seconds to import.
"""
