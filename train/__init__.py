"""Training entries on XLA, CUDA and CPUs, and in JAX, fed by `loaders`, exactly resumable.

models/                            networks by their names
runtime.py                         devices: knows torch_xla
masks.py schedule.py mixing.py     pure
flags.py run_flags.py entry.py     command lines
loop.py classify.py                what the entries share
checkpoint.py parts.py logs.py events.py    what a run writes
pretrain_mae.py finetune_mae.py train_vit.py train_resnet.py    entries
train_resnet_jax.py jax_*.py       the ResNet in JAX
export.py                          weights for other tools
"""
