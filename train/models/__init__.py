"""Networks: masked autoencoders, vision transformers and ResNets.

registry.py          PyTorch networks by their names
mae.py               masked autoencoders; reconstruction.py paints what one predicts
vit.py               vision transformers, with timm's names of parameters
packed.py            both over images of any shape, packed into rows
classifiers.py       torchvision's classifiers, and a tiny one
jax_resnet.py        ResNets in Flax
"""

__all__ = ["classifiers", "jax_resnet", "mae", "packed", "reconstruction", "registry", "vit"]
