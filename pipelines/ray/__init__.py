"""Builds on a Ray cluster by Ray's own scheduling and retries: engine.py runs the tasks, cluster.py connects.

`pipelines/task.py` is what runs on the nodes.
"""
