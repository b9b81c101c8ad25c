"""From an order of samples to filled batches: threads in one process, or several processes that share a batch's memory.

The planner says which sample belongs in which row; `pipeline.py` fetches and decodes in threads, `workers.py` spreads
the rows over processes with shared buffers, and `producer.py` keeps a bounded number of batches in progress. Threads
cannot be ended from outside, so the consumer of a batch gives up after `stall_s` without progress (`watch.py`). What
it gets is in `batch.py`.
"""

__all__ = [
    "batch",
    "batch_plan",
    "buffers",
    "durations",
    "main_guard",
    "mesh",
    "other_build",
    "packing",
    "pipeline",
    "producer",
    "stats",
    "watch",
    "workers",
]
