"""The training loop and the devices that it drives.

loop.py              the loop of all entries: steps, signals, log lines, checkpoints, diagnosis, profiles
config.py            when it logs, evaluates, saves and stops
backend.py           the protocol of a framework and its devices
torch.py             PyTorch: a `Task` turns a batch into losses
runtime.py           PyTorch's devices; xla_runtime.py torch_runtime.py tpu_runtime.py drive them, fsdp.py plans sharded
                     weights
jax.py               JAX: functions of a network on a mesh of devices; jax_steps.py those of ResNets,
                     jax_transformer_steps.py those of transformers, jax_finetune_steps.py those of fine-tuning and
                     probing, jax_arrays.py where their arrays are
compiling.py         networks that PyTorch compiles
classify.py          the task of all classifiers
mae.py               the task of masked autoencoders
packed.py            the tasks over packs
unread.py            losses that are still to be read from the device
stopping.py          signals
workload.py          one step of a named model, for `dataprep diagnose`
"""

__all__ = [
    "backend",
    "classify",
    "compiling",
    "config",
    "fsdp",
    "jax",
    "jax_arrays",
    "jax_finetune_steps",
    "jax_steps",
    "jax_transformer_steps",
    "loop",
    "mae",
    "packed",
    "runtime",
    "stopping",
    "torch",
    "torch_runtime",
    "tpu_runtime",
    "unread",
    "workload",
    "xla_runtime",
]
