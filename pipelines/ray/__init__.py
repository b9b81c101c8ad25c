"""Builds on a Ray cluster: one actor for each process, and shards handed to whichever is free.

    options.py      options after `--`; does without Ray
    cluster.py      connects to the cluster, and counts the processes for which its nodes have room
    worker.py       the actor: a process of the cluster that builds shards
    supervisor.py   keeps workers on the cluster and hands shards to them
    detached.py     the same supervisor in an actor of the cluster, for --detach
    engine.py       `--runner ray`

    driver ── begin_shard(index) ──▶ worker: one thread builds shards ── receipt ──▶ driver

The driver asks once a second which nodes there are, and starts or replaces workers; everything else comes as a reply to
a call, so nothing is polled in the output. What is built next or again is decided by dataprep/builder/pool.py.
"""
