"""Numbers and pictures that show what a dataset holds, for `dataprep inspect`.

They come from the manifest, the index and a few images; `dataprep verify` is the command that reads everything.
"""
