"""The commands: their options, usage checks and output. The module of `dataprep NAME` is called NAME.

Only this package may import all others. `dataprep.cli` imports each module only when its command is called, so that
`dataprep --help` loads neither Beam nor torch nor TensorFlow.
"""
