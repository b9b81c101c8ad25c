"""Numbers and pictures of a dataset's content, for `dataprep inspect`.

They come from the manifest, the index and a few images; `dataprep verify` is the command that reads everything.
"""
