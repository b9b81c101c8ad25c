"""Optimisers and learning rates.

schedule.py          learning rates: pure functions of the epoch
optimizer.py         AdamW for vision transformers, also with layers near the pixels that learn slower; LARS for probes
"""
