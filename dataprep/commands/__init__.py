"""One module per command; dataprep.cli imports each only when it is called."""
