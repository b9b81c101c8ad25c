"""Builds on Apache Spark by its own scheduling and retries: engine.py runs one job, session.py starts or joins Spark.

`pipelines/task.py` is what runs on the executors.
"""
