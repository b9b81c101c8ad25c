"""The training loop and the devices that it drives.

loop.py              the loop of all entries: steps, signals, log lines, checkpoints, diagnosis, profiles
backend.py           the protocol of a framework and its devices; when a loop logs, saves and stops; plans of sharding
torch.py             PyTorch: a `Task` turns a batch into losses
runtime.py           PyTorch's devices; xla_runtime.py drives XLA's
classify.py          the task of all classifiers; mae.py the task of masked autoencoders, packed.py both over packs
jax.py               JAX: functions of a network on a mesh of devices, and where their arrays are; jax_steps.py has
                     the functions of ResNets, jax_transformer_steps.py of transformers, jax_finetune_steps.py of
                     fine-tuning and probing
workload.py          one step of a named model, for `dataprep diagnose`
"""

__all__ = [
    "backend",
    "classify",
    "jax",
    "jax_finetune_steps",
    "jax_steps",
    "jax_transformer_steps",
    "loop",
    "mae",
    "packed",
    "runtime",
    "torch",
    "workload",
    "xla_runtime",
]
