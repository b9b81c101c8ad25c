"""A comparison of our loader with others on the same images, for `dataprep bench`: each run is a process of its own."""

__all__ = ["compare", "comparison", "contestant", "copies", "data", "peers", "peers_layouts", "runs", "table"]
