"""Builds on a Ray cluster by Ray's own scheduling and retries.

`pipelines/task.py` is what runs on the nodes.
"""
