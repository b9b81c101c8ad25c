"""Engines: what builds the shards of a dataset, on this machine or on many.

    protocol.py   what `dataprep build` asks of an engine; engines.py: the engines by the name of --runner
    local.py      the pool of processes of this machine; parts.py: one of several parts, which need no scheduler
    ray/          a Ray cluster; spark/: Apache Spark
    beam/         Apache Beam's runners, the only modules that import Beam
    watching.py   whether a job that runs elsewhere still makes progress

Every engine runs `build_shard`, or its first part `begin_shard`, of `dataprep/builder/job.py` for the shards that are
missing, so all of them write the same bytes. An engine's module is imported when `--runner` names it, since its library
may be absent and takes seconds to import.
"""
