"""A loader seen from outside: scraped by Prometheus, logged by a training loop, traced by OpenTelemetry.

table.py             every metric: name, labels, and how it is read
exposition.py        OpenMetrics over HTTP, for Prometheus
callback.py          numbers of the steps since the last report, for Weights & Biases, TensorBoard and others
tracing.py           a span of OpenTelemetry for each batch
"""

__all__ = ["callback", "earlier", "exposition", "table", "tracing"]
