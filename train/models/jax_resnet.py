"""Residual networks in Flax: He et al., 2016, with the stride of a bottleneck in its 3x3 convolution ("v1.5").

The last normalisation of each block starts at zero, so that a new network is nearly the identity (Goyal et al., 2017).

Shapes: N images, H x W pixels, C channels, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from flax import linen as nn

from dataprep.errors import UsageError
from dataprep.messages import there_are

if TYPE_CHECKING:
    import jax

BN_MOMENTUM = 0.9
"""Momentum of the running statistics that evaluations use."""
BN_EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class Architecture:
    """Blocks of each stage, and whether they are bottlenecks."""

    stages: Sequence[int]
    bottleneck: bool = True


ARCHITECTURES = {
    "ResNet18": Architecture((2, 2, 2, 2), bottleneck=False),
    "ResNet34": Architecture((3, 4, 6, 3), bottleneck=False),
    "ResNet50": Architecture((3, 4, 6, 3)),
    "ResNet101": Architecture((3, 4, 23, 3)),
    "ResNet152": Architecture((3, 8, 36, 3)),
    "ResNet200": Architecture((3, 24, 36, 3)),
    "ResNet500": Architecture((3, 124, 36, 3)),
    "ResNet800": Architecture((3, 224, 36, 3)),
    "_ResNet1": Architecture((1,), bottleneck=False),
}
"""Architectures by their names; `_ResNet1` is one block, for debugging."""


def create_resnet(name: str, *, num_classes: int, dtype: jax.typing.DTypeLike) -> ResNet:
    """Make a network without weights, one of `ARCHITECTURES`; weights and statistics are float32 whatever the `dtype`.
    Raises UsageError if there is no such network."""
    if name not in ARCHITECTURES:
        raise UsageError(f"no model {name!r}{there_are(name, ARCHITECTURES, cutoff=0.4)}")
    return ResNet(architecture=ARCHITECTURES[name], num_classes=num_classes, dtype=dtype)


class ResNet(nn.Module):
    """A residual network from images to logits.

    Batch statistics are of the complete batch: under `jax.jit` the mean is taken over all devices of all processes
    among which the batch is sharded.
    """

    architecture: Architecture
    num_classes: int
    dtype: jax.typing.DTypeLike
    width: int = 64

    @nn.compact
    def __call__(self, images_NHWC: jax.Array, *, train: bool) -> jax.Array:
        """Return the logits, float32, NK, of normalised images."""
        conv = partial(nn.Conv, use_bias=False, dtype=self.dtype)
        norm = partial(
            nn.BatchNorm, use_running_average=not train, momentum=BN_MOMENTUM, epsilon=BN_EPSILON, dtype=self.dtype
        )
        block = Bottleneck if self.architecture.bottleneck else BasicBlock
        x_NHWC = images_NHWC.astype(self.dtype)
        x_NHWC = conv(self.width, (7, 7), strides=2, padding=3, name="conv_init")(x_NHWC)
        x_NHWC = nn.relu(norm(name="bn_init")(x_NHWC))
        x_NHWC = nn.max_pool(x_NHWC, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))  # type: ignore[no-untyped-call]
        for stage, blocks in enumerate(self.architecture.stages):
            for number in range(blocks):
                stride = 2 if stage > 0 and number == 0 else 1
                x_NHWC = block(self.width << stage, stride, conv, norm)(x_NHWC)
        x_NC = x_NHWC.mean(axis=(1, 2))
        return nn.Dense(self.num_classes, dtype=self.dtype)(x_NC).astype("float32")


class _Block(nn.Module):
    channels: int
    stride: int
    conv: Callable[..., Any]
    norm: Callable[..., Any]


class BasicBlock(_Block):
    """Two 3x3 convolutions."""

    @nn.compact
    def __call__(self, x_NHWC: jax.Array) -> jax.Array:
        """Return the same shape, or half the sides and other channels."""
        y_NHWC = self.conv(self.channels, (3, 3), strides=self.stride, padding=1)(x_NHWC)
        y_NHWC = nn.relu(self.norm()(y_NHWC))
        y_NHWC = self.conv(self.channels, (3, 3), padding=1)(y_NHWC)
        y_NHWC = self.norm(scale_init=nn.initializers.zeros)(y_NHWC)
        return nn.relu(y_NHWC + _shortcut(self, x_NHWC, y_NHWC.shape))


class Bottleneck(_Block):
    """1x1, 3x3 and 1x1 convolutions, the last one with four times as many channels."""

    @nn.compact
    def __call__(self, x_NHWC: jax.Array) -> jax.Array:
        """Return the same shape, or half the sides and other channels."""
        y_NHWC = nn.relu(self.norm()(self.conv(self.channels, (1, 1))(x_NHWC)))
        y_NHWC = self.conv(self.channels, (3, 3), strides=self.stride, padding=1)(y_NHWC)
        y_NHWC = nn.relu(self.norm()(y_NHWC))
        y_NHWC = self.conv(4 * self.channels, (1, 1))(y_NHWC)
        y_NHWC = self.norm(scale_init=nn.initializers.zeros)(y_NHWC)
        return nn.relu(y_NHWC + _shortcut(self, x_NHWC, y_NHWC.shape))


def _shortcut(block: _Block, x_NHWC: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the shortcut that is added to the convolutions' result: the input, or a projection if shapes differ."""
    if x_NHWC.shape == shape:
        return x_NHWC
    projected_NHWC = block.conv(shape[-1], (1, 1), strides=block.stride, padding=0, name="conv_proj")(x_NHWC)
    shortcut_NHWC: jax.Array = block.norm(name="norm_proj")(projected_NHWC)
    return shortcut_NHWC
