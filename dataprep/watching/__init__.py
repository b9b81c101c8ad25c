"""How far a build or a training is, as its own files show it to any host, for `dataprep watch`. Nothing is written."""
