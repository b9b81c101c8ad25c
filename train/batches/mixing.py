"""Mixup and CutMix: every image is mixed with another one of its batch, and so are their labels.

Zhang et al., "mixup", ICLR 2018; Yun et al., "CutMix", ICCV 2019. Draws are a function of the seed and the batch. The
i-th image of a batch is mixed with the i-th from its end, so the number of hosts and parts changes nothing.

Shapes: N images of a part, B of a batch of all hosts, H = W pixels, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from dataprep.arrays import NDArray, np
from dataprep.dataset.randomness import philox_words
from dataprep.errors import UsageError

MODES = ("batch", "pair", "elem")
"""Scopes of one draw: a batch, a pair of partners, or one image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixConfig:
    """Settings of Mixup and CutMix. Raises UsageError if the smallest side of boxes is not below the largest."""

    mixup: float = 0.0
    """Both parameters of the Beta distribution from which an image's own share is drawn; 0: no mixup."""
    cutmix: float = 0.0
    """Both parameters of the Beta distribution from which the area that an image keeps is drawn; 0: no CutMix."""
    cutmix_minmax: tuple[float, float] | None = None
    """Smallest and largest side of the exchanged box, as shares of the image's side; replaces `cutmix`."""
    prob: float = 1.0
    """Probability that a draw mixes images."""
    switch_prob: float = 0.5
    """Probability of CutMix rather than mixup if both are on."""
    mode: str = "batch"

    def __post_init__(self) -> None:
        if self.cutmix_minmax is not None and not 0 <= self.cutmix_minmax[0] < self.cutmix_minmax[1] <= 1:
            low, high = self.cutmix_minmax
            raise UsageError(f"`cutmix_minmax` must be a range within 0 to 1, got {low} {high}")

    @property
    def cuts(self) -> bool:
        """Whether CutMix is on."""
        return self.cutmix > 0 or self.cutmix_minmax is not None

    @property
    def enabled(self) -> bool:
        """Whether anything is mixed."""
        return self.mixup > 0 or self.cuts


class Mixes(NamedTuple):
    """Shares that each image keeps of itself, arrays of any framework; the rest comes from its partner."""

    share_N: Any
    """Share of the image's own label, float32."""
    weight_N: Any
    """Share of the image's own value in every pixel outside the box, float32."""
    box_N4: Any
    """Top, bottom, left and right, in pixels, of the box that comes from the partner; top equals bottom if there is no
    box."""


def draw_mixes(config: MixConfig, *, seed: int, positions: range, batch_size: int, image_size: int) -> Mixes:
    """Draw shares and boxes for some images of one batch of B, by their positions over all epochs.

    The raw random words never change; what NumPy's Generator draws from them may change between NumPy's releases.
    """
    batch = positions.start // batch_size
    rng = np.random.Generator(np.random.Philox(key=philox_words(2, seed=seed, purpose="train/mix", start=4 * batch)))
    groups = {"batch": 1, "pair": (batch_size + 1) // 2, "elem": batch_size}[config.mode]
    is_mixed = rng.random(groups) < config.prob
    switch = config.switch_prob if config.mixup else 1.0
    is_sharded = (rng.random(groups) < switch) & config.cuts & is_mixed
    mixup_share = rng.beta(config.mixup, config.mixup, groups) if config.mixup else np.ones(groups)
    boxes_G4 = np.where(is_sharded[:, None], _draw_boxes(config, rng, groups, image_size), 0)
    area = (boxes_G4[:, 1] - boxes_G4[:, 0]) * (boxes_G4[:, 3] - boxes_G4[:, 2])
    weight_G = np.where(is_mixed & ~is_sharded, mixup_share, 1.0)
    share_G = weight_G * (1 - area / image_size**2)

    index_N = np.asarray(positions) - batch * batch_size
    group_N = {"batch": 0 * index_N, "pair": np.minimum(index_N, batch_size - 1 - index_N), "elem": index_N}[
        config.mode
    ]
    return Mixes(
        share_G[group_N].astype(np.float32), weight_G[group_N].astype(np.float32), boxes_G4[group_N].astype(np.int32)
    )


def _draw_boxes(config: MixConfig, rng: np.random.Generator, count: int, side: int) -> NDArray[np.int64]:
    """Draw boxes, (count, 4). CutMix's boxes are clipped at the image's border, as by its authors."""
    if config.cutmix_minmax is not None:
        low, high = (int(side * each) for each in config.cutmix_minmax)
        size = rng.integers(low, max(high, low + 1), (2, count))
        start = (rng.random((2, count)) * (side - size + 1)).astype(np.int64)
        return np.stack([start[0], start[0] + size[0], start[1], start[1] + size[1]], axis=1)
    kept = rng.beta(config.cutmix, config.cutmix, count) if config.cutmix else np.ones(count)
    half = (side * np.sqrt(1 - kept)).astype(np.int64) // 2
    center = rng.integers(0, side, (2, count))
    start, stop = np.clip(center - half, 0, side), np.clip(center + half, 0, side)
    return np.stack([start[0], stop[0], start[1], stop[1]], axis=1)


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """Mixes the parts of a run's batches: the i-th image of a batch with its partner, the i-th from the end."""

    config: MixConfig
    put: Callable[[torch.Tensor], torch.Tensor]
    """Function that copies rows of this host's batch to the devices."""
    seed: int
    batch_size: Callable[[], int]
    """Returns the images of the present update, of all hosts and parts together."""
    num_classes: int

    def __call__(
        self,
        images_NCHW: torch.Tensor,
        labels_N: torch.Tensor,
        others_NCHW: torch.Tensor,
        other_labels_N: torch.Tensor,
        positions: range,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mixed images, which are normalised, and the shares of the classes, (N, C)."""
        mixes = draw_mixes(
            self.config,
            seed=self.seed,
            positions=positions,
            batch_size=self.batch_size(),
            image_size=images_NCHW.shape[-1],
        )
        on_device = Mixes(*(self.put(torch.from_numpy(each)) for each in mixes))
        at = torch.arange(images_NCHW.shape[-1], device=images_NCHW.device)
        share_N, own_NHW = own_shares(on_device, other_labels_N >= 0, at, torch.where)
        own_N1HW = own_NHW[:, None]
        one_hot, other_one_hot = (
            F.one_hot(each.clamp(min=0), self.num_classes).float() for each in (labels_N, other_labels_N)
        )
        shares_NC = share_N[:, None] * one_hot + (1 - share_N[:, None]) * other_one_hot
        return own_N1HW * images_NCHW + (1 - own_N1HW) * others_NCHW, shares_NC


def own_shares(mixes: Mixes, has_partner_N: Any, at: Any, where: Callable[[Any, Any, float], Any]) -> tuple[Any, Any]:
    """Return shares of images' own labels, (N,), and of their own values in each pixel, (N, H, W).

    Args:
        mixes: Arrays of PyTorch or of JAX, as all of these.
        has_partner_N: False for an image whose partner could not be read; it is not mixed.
        at: Numbers of the rows or columns of pixels, 0 to H - 1.
        where: The framework's function of this name.
    """
    share_N, weight_N = (where(has_partner_N, each, 1.0) for each in (mixes.share_N, mixes.weight_N))
    box_N4 = mixes.box_N4 * has_partner_N[:, None]
    top, bottom, left, right = (box_N4[:, side, None] for side in range(4))
    rows_NH, columns_NW = (at >= top) & (at < bottom), (at >= left) & (at < right)
    return share_N, weight_N[:, None, None] * ~(rows_NH[:, :, None] & columns_NW[:, None, :])
