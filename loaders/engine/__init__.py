"""From an order of samples to filled batches: threads in one process, or several processes that share a batch's memory.

`batch.py` assigns samples to rows, and has what a consumer gets. `producer.py` keeps a bounded number of batches in
progress, in this process or in several with shared buffers; `pipeline.py` fetches and decodes the rows of one in
threads, and watches that they make progress. `stats.py` counts and times the stages. `resumption.py` orders the
remaining samples of a run whose dataset or view has changed.
"""
