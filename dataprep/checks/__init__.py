"""What `dataprep verify` looks at, one module a part of a dataset."""
