"""Builds on Apache Spark by its own scheduling and retries.

`pipelines/task.py` is what runs on the executors.
"""
