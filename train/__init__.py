"""Training entries on XLA, CUDA and CPUs, fed by `loaders`, exactly resumable.

models/      networks by their names
runtime.py   devices: the only place that knows torch_xla
masks.py schedule.py    pure
checkpoint.py logs.py events.py    what a run writes
pretrain_mae.py    an entry
"""
