"""The training loop and the devices that it drives.

loop.py              the loop of all entries: steps, signals, log lines, checkpoints, diagnosis, profiles
backend.py           the protocol of a framework and its devices; when a loop logs, saves and stops; plans of sharding
torch.py             PyTorch: a `Task` turns a batch into losses
runtime.py           PyTorch's devices
tasks.py             the tasks of classifiers and of masked autoencoders, of images and of packs
jax.py               JAX: functions of a network on a mesh of devices, where their arrays are, and the functions of
                     ResNets; jax_transformer_steps.py has those of transformers, also of fine-tuning
workload.py          one step of a named model, for `dataprep diagnose`
"""
