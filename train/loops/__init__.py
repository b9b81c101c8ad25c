"""The training loop and the devices that it drives.

loop.py              the loop of all entries: steps, signals, log lines, checkpoints, diagnosis, profiles
backend.py           the protocol of a framework and its devices; when a loop logs, saves and stops; plans of sharding
torch.py             PyTorch: a `Task` turns a batch into losses
runtime.py           PyTorch's devices
tasks.py             the tasks of classifiers and of masked autoencoders, of images and of packs
jax.py               JAX: functions of a network on a mesh of devices, and where their arrays are; jax_steps.py has
                     the functions of ResNets, jax_transformer_steps.py of transformers, also of fine-tuning
workload.py          one step of a named model, for `dataprep diagnose`
"""

__all__ = [
    "backend",
    "jax",
    "jax_steps",
    "jax_transformer_steps",
    "loop",
    "runtime",
    "tasks",
    "torch",
    "workload",
]
