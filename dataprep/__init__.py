"""From original image archives to TPU-friendly shards in a bucket beside the TPU."""

__version__ = "0.1.0"
