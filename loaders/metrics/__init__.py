"""A loader seen from outside: scraped by Prometheus, logged by a training loop, compared with an earlier run.

exposition.py        every metric (name, labels, and how it is read), and OpenMetrics over HTTP for Prometheus
callback.py          numbers of the steps since the last report, for Weights & Biases, TensorBoard and others
earlier.py           results of an earlier run, and what differs from it
"""
