"""Networks: masked autoencoders, vision transformers and ResNets.

sizes.py             sizes of transformers and masked autoencoders by their names, and layers of their weights
registry.py          PyTorch networks by their names; torchvision's classifiers
mae.py               masked autoencoders
vit.py               vision transformers, with timm's names of parameters
encoders.py          networks of timm, open_clip and diffusers as functions of `dataprep map`
packed.py            both over images of any shape, packed into rows
jax_resnet.py        ResNets in Flax
jax_transformers.py  vision transformers and masked autoencoders in Flax
"""
