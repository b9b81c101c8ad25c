"""Optimisers and learning rates.

schedule.py          learning rates: pure functions of the epoch
optimizer.py         AdamW for vision transformers
layer_decay.py       AdamW for fine-tuning: layers near the pixels learn slower
jax_layer_decay.py   the same shares of the learning rate in JAX
lars.py              LARS, for linear probes
"""

__all__ = ["jax_layer_decay", "lars", "layer_decay", "optimizer", "schedule"]
