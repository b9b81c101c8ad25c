"""Picture of a masked autoencoder's predictions: rows of original, visible patches, prediction, and both together.

Shapes: N images, H x W pixels, C = 3 channels.
"""

from __future__ import annotations

import io

import torch

from loaders.torch import normalize
from train.models.mae import MaskedAutoencoder, image_of, patches_of

_GAP_PIXELS = 4


def reconstruction_png(
    model: MaskedAutoencoder,
    images_NHWC: torch.Tensor,
    visible_NK: torch.Tensor,
    place_NL: torch.Tensor,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> tuple[bytes, int, int]:
    """Return a PNG and its height and width.

    Args:
        model: Model on the host.
        images_NHWC: Images, uint8.
        visible_NK: As `MaskedAutoencoder.forward` takes it.
        place_NL: As `MaskedAutoencoder.forward` takes it.
        mean: Mean of each channel, for values of 0..1, as the model was trained with.
        std: Standard deviation of each channel, for values of 0..1, as the model was trained with.
    """
    from PIL import Image

    images_NCHW = normalize(images_NHWC, mean=mean, std=std)
    with torch.no_grad():
        output = model(images_NCHW, visible_NK, place_NL)
        painted_NPV = output.prediction_NPV
        if model.config.norm_pix_loss:  # mean and standard deviation of a patch are not predicted
            variance, center = torch.var_mean(patches_of(images_NCHW, model.prediction_pixels), -1, keepdim=True)
            painted_NPV = painted_NPV * variance.sqrt() + center
    scale, shift = (torch.tensor(each)[:, None, None] for each in (std, mean))
    painted = ((image_of(painted_NPV) * scale + shift) * 255).clamp(0, 255).byte()
    original = images_NHWC.permute(0, 3, 1, 2)
    grid = model.config.grid
    hidden = (place_NL >= visible_NK.shape[1]).view(-1, 1, grid, grid)
    hidden = hidden.repeat_interleave(model.config.patch_size, 2).repeat_interleave(model.config.patch_size, 3)
    gray = torch.full_like(original, 128)
    columns = [original, torch.where(hidden, gray, original), painted, torch.where(hidden, painted, original)]
    framed = [torch.nn.functional.pad(each, (0, _GAP_PIXELS, 0, _GAP_PIXELS), value=255) for each in columns]
    picture = torch.cat([torch.cat(list(row), dim=2) for row in zip(*framed, strict=True)], dim=1)
    stream = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).save(stream, "PNG")
    return stream.getvalue(), picture.shape[1], picture.shape[2]
