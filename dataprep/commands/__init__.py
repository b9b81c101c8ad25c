"""The commands, one module each: options, checks of usage, and what is printed.

This room alone may import every other one, and `dataprep.cli` imports each module only when its command is called, so
that `dataprep --help` loads neither Beam nor torch nor TensorFlow.
"""
