"""Training entries on XLA, CUDA and CPUs, and in JAX, fed by `loaders`, exactly resumable.

Entries, each with its flags in its own file:

pretrain_mae.py      masked autoencoders                       dataprep-pretrain-mae
finetune_mae.py      classifiers from pretrained encoders      dataprep-finetune-mae
train_vit.py         vision transformers of any size           dataprep-train-vit
train_resnet.py      torchvision's classifiers                 dataprep-train-resnet
train_resnet_jax.py  ResNets in JAX                            dataprep-train-resnet-jax
export.py            weights of a checkpoint for other tools   dataprep-export

Rooms, from above; a room imports only what is below it:

flags/               command lines
loops/               the one training loop, its backends and their devices
checkpoints/ optim/  saved states of a run; optimisers and learning rates
batches/ models/ telemetry/     inputs of a step; networks; logs, profiles and diagnoses of a run
"""

__all__ = ["export", "finetune_mae", "pretrain_mae", "train_resnet", "train_resnet_jax", "train_vit"]
