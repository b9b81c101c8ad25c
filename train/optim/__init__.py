"""Optimisers and learning rates.

schedule.py          learning rates: pure functions of how far a run is
optimizer.py         AdamW as vision transformers are trained
layer_decay.py       AdamW for fine-tuning: layers near the pixels learn slower
lars.py              LARS, by which linear layers are probed
"""

__all__ = ["lars", "layer_decay", "optimizer", "schedule"]
