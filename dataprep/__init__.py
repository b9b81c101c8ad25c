"""Training data from original image archives: built, verified, described for loaders, and copied near their readers.

docs/architecture.md lists the rooms of this package, from the commands at the top to storage at the bottom. The
docstring of each explains it.
"""

__version__ = "0.2.0"
