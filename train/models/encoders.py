"""Networks of timm, open_clip and diffusers as functions of `dataprep map`: embeddings and latents of images.

    timm:MODEL                           a name with weights that timm publishes: vit_small_patch14_dinov2.lvd142m
    open_clip:MODEL@TAG                  likewise: ViT-B-32@laion2b_s34b_b79k
    timm:MODEL@FILE.safetensors          an architecture that the library knows, and a file with its weights
    timm:hf-hub:OWNER/NAME[@REVISION]    a repository of the Hugging Face Hub with configuration and weights
    timm:FOLDER                          a folder with the same files

open_clip takes these forms, too; vae, an AutoencoderKL of diffusers, takes the last two. Only .safetensors files are
read, because a pickle can run code. The library prepares images as the model's configuration says.

Shapes: N images, C = 3 channels, H and W pixels as the model takes them.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from dataprep.arrays import NDArray, np
from dataprep.column_functions import Columns, Samples, scaled
from dataprep.errors import UsageError, needing
from dataprep.messages import quoted
from dataprep.sources.custom import calling

with needing("torch", "models of dataprep map"):
    import torch
    from torch import nn

HUB = "hf-hub:"
SUFFIX = ".safetensors"
_MAX_CONFIG_BYTES = 1 << 20
_THREADS = 4
"""Threads that prepare the images of a batch: Pillow leaves Python's lock while it resizes."""
Prepare = Callable[[Image.Image], torch.Tensor]
"""Makes the float32 tensor (C, H, W) that a model takes of an RGB image."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of a model as files of this machine."""

    name: str
    """Name of the model that a column keeps: no folder of this machine."""
    given: str
    """Text that finds it from any folder."""
    library: str
    """The library with its version."""
    file: Path
    config: Path | None = None
    """The model's configuration; None where the library knows the architecture."""

    @cached_property
    def version(self) -> str:
        """Library, its version, and SHA-256 of weights and configuration: with another one, values differ."""
        parts = [self.library, f"weights {_sha256(self.file)}"]
        return ", ".join([*parts, *([f"configuration {_sha256(self.config)[:16]}"] if self.config else [])])


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Encoder(ABC):
    """A model as a function: float16 values of a batch of images. It runs on a TPU if PJRT_DEVICE says so, else on the
    accelerator that PyTorch sees, else on the CPU."""

    package: ClassVar[str]
    """Distribution of the library, as pip installs it."""
    config_file: ClassVar[str]
    weights_file: ClassVar[str]

    def __init__(self, weights: Weights, size: int | None = None) -> None:
        """Load a model. `size` is the side of the images that it gets, in pixels; None as its configuration says."""
        self._device = _device()
        self._threads = ThreadPoolExecutor(_THREADS)
        model, self._prepare = self._open(weights, size)
        self._model: Any = model.eval().to(self._device)

    @torch.no_grad()  # not inference_mode: XLA refuses its tensors
    def __call__(self, samples: Samples) -> NDArray[np.float16]:
        """Return the values of the images, shape (N, ...)."""
        images = self._threads.map(self._prepare, map(Image.fromarray, samples.images))
        values = self._encode(torch.stack(list(images)).to(self._device)).cpu()
        if values.abs().max() > torch.finfo(torch.float16).max:
            raise ValueError(f"a value of {values.abs().max():g} is out of the range of float16")
        found: NDArray[np.float16] = values.half().numpy()
        return found

    @classmethod
    def find(cls, given: str) -> Weights:
        """Find the model with this name, and fetch what the Hub has of it.

        Raises:
            UsageError: The library is not installed, or there is no such model or no safetensors file of it.
            SourceError: The library or the Hub refuses.
        """
        try:
            library = f"{cls.package} {version(cls.package)}"
        except PackageNotFoundError:
            raise UsageError(f"{quoted(given)} needs the package {cls.package}; install it on every worker") from None
        model, _, given_weights = given.partition("@")
        path = Path(given_weights)
        if not given.startswith(HUB) and (path.suffix == SUFFIX or path.is_file()):
            if path.suffix != SUFFIX or not path.is_file():
                raise UsageError(f"{given_weights}: expected a {SUFFIX} file; other weights can run code when read")
            return Weights(name=model, given=f"{model}@{path.absolute()}", library=library, file=path)
        name, folder = given, Path(given).absolute()
        if folder.is_dir():
            name, given = folder.name, str(folder)
        else:
            with calling(f"finding {quoted(given)}"):
                repository = given.removeprefix(HUB) if given.startswith(HUB) else cls._published(model, given_weights)
                folder = cls._fetched(repository)
        config, file = folder / cls.config_file, folder / cls.weights_file
        if not config.is_file() or not file.is_file() or config.stat().st_size > _MAX_CONFIG_BYTES:
            raise UsageError(f"{folder}: expected {cls.config_file} and {cls.weights_file}; {SUFFIX} alone is read")
        return Weights(name=name, given=given, library=library, file=file, config=config)

    @classmethod
    def _fetched(cls, repository: str) -> Path:
        """Return the folder with a repository's files."""
        from huggingface_hub import snapshot_download

        name, _, revision = repository.partition("@")
        files = [cls.config_file, cls.weights_file]
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=files))

    @classmethod
    def _published(cls, model: str, tag: str) -> str:
        """Return the Hub's repository of a name of the library. Raises UsageError if there is none."""
        what = f"no folder, and no name with weights on the Hub; give {HUB}OWNER/NAME, FOLDER or MODEL@FILE{SUFFIX}"
        raise UsageError(f"{quoted(f'{model}@{tag}' if tag else model)}: {what}")

    @abstractmethod
    def _open(self, weights: Weights, size: int | None) -> tuple[nn.Module, Prepare]:
        """Load the model, every weight of it, and what prepares its images."""

    def _encode(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self._model(images_NCHW)
        return values


def _device() -> torch.device:
    if os.environ.get("PJRT_DEVICE") == "TPU":
        import torch_xla

        device: torch.device = torch_xla.device()
        return device
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


@Columns()
class Timm(Encoder):
    """Pooled features of a model of timm, such as DINOv2."""

    package, config_file, weights_file = "timm", "config.json", "model.safetensors"

    @classmethod
    def _published(cls, model: str, tag: str) -> str:
        import timm

        found = timm.models.get_pretrained_cfg(model) if not tag and timm.is_model(model.partition(".")[0]) else None
        return found.hf_hub_id if found and found.hf_hub_id else super()._published(model, tag)

    def _open(self, weights: Weights, size: int | None) -> tuple[nn.Module, Prepare]:
        import timm
        from safetensors import safe_open

        # With as many classes as the weights have, timm refuses a file that lacks a weight; with none it would not.
        if weights.config:
            model = timm.create_model(f"local-dir:{weights.file.parent}", pretrained=True)
        else:
            classifier = timm.models.get_pretrained_cfg(weights.name).classifier
            head = f"{classifier if isinstance(classifier, str) else classifier[0]}.weight"
            with safe_open(weights.file, "pt") as stream:
                classes = stream.get_slice(head).get_shape()[0] if head in stream.keys() else 0  # noqa: SIM118
            facts = {"file": str(weights.file), "num_classes": classes, "custom_load": False, "label_offset": 0}
            model = timm.create_model(weights.name, True, num_classes=classes, pretrained_cfg_overlay=facts)
        model.reset_classifier(0)
        if size and hasattr(model, "set_input_size"):
            model.set_input_size(img_size=size)
        facts = timm.data.resolve_model_data_config(model, {"img_size": size})
        return model, timm.data.create_transform(**facts)


@Columns()
class OpenClip(Encoder):
    """Embeddings of a CLIP model of open_clip, of length 1."""

    package, config_file, weights_file = "open_clip_torch", "open_clip_config.json", "open_clip_model.safetensors"

    @classmethod
    def _published(cls, model: str, tag: str) -> str:
        import open_clip

        found = open_clip.get_pretrained_cfg(model, tag).get("hf_hub", "")
        return "/".join(found.split("/")[:2]) or super()._published(model, tag)

    def _open(self, weights: Weights, size: int | None) -> tuple[nn.Module, Prepare]:
        import open_clip

        folder = f"local-dir:{weights.file.parent}"
        name, file = (folder, None) if weights.config else (weights.name, str(weights.file))
        found: tuple[nn.Module, Prepare] = open_clip.create_model_from_pretrained(name, file, force_image_size=size)
        return found

    def _encode(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        embeddings: torch.Tensor = self._model.encode_image(images_NCHW, normalize=True)
        return embeddings


@Columns()
class Vae(Encoder):
    """Latents of an AutoencoderKL of diffusers, as diffusion models take them: the mean, shifted and scaled as the
    configuration says. The shorter side of an image is scaled to the size, and the centre cut."""

    package, config_file, weights_file = "diffusers", "config.json", "diffusion_pytorch_model.safetensors"

    def _open(self, weights: Weights, size: int | None) -> tuple[nn.Module, Prepare]:
        from diffusers import AutoencoderKL

        if weights.config is None:
            raise UsageError(f"{weights.file}: a VAE needs {self.config_file}; give FOLDER or {HUB}OWNER/NAME")
        options = {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
        model, loaded = AutoencoderKL.from_pretrained(weights.file.parent, **options)
        if missing := loaded["missing_keys"]:
            raise ValueError(f"{weights.file} lacks {len(missing)} weights, such as {min(missing)}")
        side: int = size or model.config.sample_size

        def prepare(image: Image.Image) -> torch.Tensor:
            return torch.from_numpy(scaled(np.asarray(image), side)).permute(2, 0, 1) / 127.5 - 1

        return model, prepare

    def _encode(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        facts = self._model.config
        mean: torch.Tensor = self._model.encode(images_NCHW).latent_dist.mode()
        return mean.sub(facts.shift_factor or 0).mul(facts.scaling_factor)
