"""Builds on Apache Spark, natively: one job with one task for each shard, whose results arrive as tasks end.

    options.py    options after `--`, settings of Spark, and how many shards are in progress; pure
    failures.py   what a failed job of Spark means for the user; pure
    task.py       one shard on an executor; the only module that executors import
    session.py    starts or joins Spark
    engine.py     runs the job, and passes receipts on

Receipts arrive through an accumulator: Spark merges a task's update at the driver when the task has succeeded, exactly
once, so no storage is polled. Spark tries a lost task again, on another executor if there is one. A shard whose task
was lost twice is tried once more when all others are done, alone, so that a shard which took its neighbours down with
its executor is told from them; then it is set aside and named.
"""
