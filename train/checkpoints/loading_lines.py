"""Lines of Python that load an exported file into a network of another library, and give it a first batch.

They need no dataprep, except for a file at a URL, and are printed to be pasted as they are.
"""

from __future__ import annotations

from dataprep.dataset.manifest import MANIFEST
from loaders.config import EVALUATION_CROP
from train.batches.data import UNCROPPED_SIDE
from train.checkpoints.constructors import UNKNOWN_HEADS
from train.checkpoints.encoder_weights import METADATA, SAFETENSORS, SAFETENSORS_KEY, Weights
from train.checkpoints.state import CLASSES

_BATCH = 2
_NO_STATISTICS = (
    "# The source does not say by which mean and standard deviation its images were standardised: put them in. For a",
    "# model of timm's, timm.data.resolve_model_data_config(timm.create_model(NAME)) has them.",
    "mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)",
)
_CLASSES = "# outputs[:, k] is the score of classes[k]; Hugging Face's id2label is dict(enumerate(classes))."
_NO_CLASSES = f"# outputs[:, k] is the score of class k, counted from 0, of the dataset's classes: see its {MANIFEST}."


def loading_lines(
    output: str, network: str | None, *, names: str, weights: Weights, num_classes: int, has_classes: bool
) -> list[str]:
    """Return the lines: imports, the network with the file's tensors, and a batch of random images through it.

    Args:
        output: Path or URL of the exported file.
        network: Call that makes the network; None if no library has one: then the lines load the tensors alone.
        names: Names of the tensors, a key of `train.export.NAMES`.
        weights: Source of the tensors, which knows how the network's images were prepared.
        num_classes: Number of the network's logits; 0: it has no head.
        has_classes: Whether the file has the names of their classes.
    """
    loading, imports = _loading(output, has_classes=has_classes)
    if network is None:
        return [*imports, "", *loading]
    imports = sorted({*imports, "import torch", f"import {network.partition('.')[0]}"}, key=_order_of_imports)
    lines = [*(["# pip install transformers"] if names == "vitmae" else []), *imports, ""]
    if f"={UNKNOWN_HEADS}" in network:
        lines.append(f"# {UNKNOWN_HEADS} is the number of heads, which the source does not say: put it in")
    lines += [*loading, f"model = {network}.eval()"]
    result = ""
    if names == "vitmae":
        lines.append('tensors = {name.removeprefix("vit."): each for name, each in tensors.items()}')
        lines.append("model.config.mask_ratio = 0.0  # all patches; their order in the output is random")
        result = ".last_hidden_state"
    lines.append("model.load_state_dict(tensors)")
    side = weights.image_size
    lines += _preparation(weights)
    return [
        *lines,
        f"images = torch.rand({_BATCH}, 3, {side}, {side})  # your first batch: RGB, 0 to 1",
        "images_standardised = (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)",
        "with torch.no_grad():",
        f"    outputs = model(images_standardised){result}",
        *([_CLASSES if has_classes else _NO_CLASSES] if num_classes else []),
        "",
        "print(outputs.shape)",
    ]


def _preparation(weights: Weights) -> list[str]:
    """Return lines about how the pixels of a picture become the network's input, as far as the source says it."""
    if weights.pixels is None:
        return list(_NO_STATISTICS)
    side = weights.image_size
    # Networks with a class token are evaluated by fine-tuning and probing, which do not crop large images.
    uncropped = "cls_token" in weights.tensors and side > UNCROPPED_SIDE
    short_side = side if uncropped else round(side / EVALUATION_CROP)
    return [
        f"mean, std = {weights.pixels.mean}, {weights.pixels.std}",
        f"# As in an evaluation: resize the short side to {short_side} pixels (bicubic, antialiased), then take the "
        f"centre of {side} x {side}.",
    ]


def _loading(output: str, *, has_classes: bool) -> tuple[list[str], list[str]]:
    """Return lines that read the file's tensors by their names, and the names of its classes, and the imports."""
    folder, _, name = output.rpartition("/")
    is_url = "://" in output
    data = f"open_storage({folder!r}).read({name!r})"
    storage = ["from dataprep.storage import open_storage"] if is_url else []
    if not name.endswith(SAFETENSORS):
        file = f"io.BytesIO({data})" if is_url else repr(output)
        imports = [*(["import io"] if is_url else []), "import torch", *storage]
        loaded = f"torch.load({file}, weights_only=True)"
        if not has_classes:
            return [f'tensors = {loaded}["model"]'], imports
        return [f"saved = {loaded}", f'tensors, classes = saved["model"], saved["{METADATA}"]["{CLASSES}"]'], imports
    if not has_classes:
        if is_url:
            return [f"tensors = load({data})"], [*storage, "from safetensors.torch import load"]
        return [f"tensors = load_file({output!r})"], ["from safetensors.torch import load_file"]
    if is_url:
        head = 'json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]'
        named = f'classes = json.loads({head}["{SAFETENSORS_KEY}"])["{CLASSES}"]'
        imports = ["import json", *storage, "from safetensors.torch import load"]
        return [f"data = {data}", "tensors = load(data)", named], imports
    return [
        f"tensors = load_file({output!r})",
        f'with safe_open({output!r}, "pt") as file:',
        f'    classes = json.loads(file.metadata()["{SAFETENSORS_KEY}"])["{CLASSES}"]',
    ], ["import json", "from safetensors import safe_open", "from safetensors.torch import load_file"]


def _order_of_imports(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line
