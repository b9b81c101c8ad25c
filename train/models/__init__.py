"""Networks: masked autoencoders, vision transformers and ResNets.

sizes.py             sizes of transformers and masked autoencoders by their names, for every framework
registry.py          PyTorch networks by their names
mae.py               masked autoencoders; reconstruction.py paints what one predicts
vit.py               vision transformers, with timm's names of parameters
packed.py            both over images of any shape, packed into rows
layers.py            which layer a weight is of, by its name
classifiers.py       torchvision's classifiers, and a tiny one
jax_resnet.py        ResNets in Flax
jax_transformers.py  vision transformers and masked autoencoders in Flax; positions.py their fixed positions
"""

__all__ = [
    "classifiers",
    "jax_resnet",
    "jax_transformers",
    "layers",
    "mae",
    "packed",
    "positions",
    "reconstruction",
    "registry",
    "sizes",
    "vit",
]
