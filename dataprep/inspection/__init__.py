"""Numbers and pictures of a dataset's content, for `dataprep inspect`.

inspect.py        counts, histograms and rejected images, from the manifest, the index and the events
contact_sheet.py  thumbnails: images spread evenly over a split, and unusual ones

They read only a few images from the shards; `dataprep verify` is the command that reads everything.
"""
