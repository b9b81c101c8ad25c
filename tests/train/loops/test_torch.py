"""Every update of the PyTorch entries beside the papers' formulas, in NumPy's float64: rates, groups, steps.

The gradients are the run's own; what is made of them is computed here a second time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from dataprep.errors import UsageError
from loaders.torch import TorchBatch
from train import finetune_mae, pretrain_mae, train_resnet, train_vit
from train.finetune_mae import recipe_flags
from train.loops.loop import Training
from train.loops.runtime import Runtime
from train.loops.torch import Task, TorchBackend, compile_network
from train.models.registry import create_model
from train.pretrain_mae import PretrainMAE
from train.train_resnet import STEPS, TrainResNet
from train.train_vit import TrainViT

IMAGES, BATCH = 60, 8
"""Images in the dataset's training split, and in an update."""
EPOCHS, WARMUP = 3, 1
COMMON = {"device": "cpu", "output_dir": "", "epochs": EPOCHS, "num_workers": 1}

Values = dict[str, NDArray[np.float64]]


@dataclass
class Watched:
    """What an optimiser was given in every update, and what it made of it."""

    rates: list[dict[str, float]] = field(default_factory=list)
    gradients: list[Values] = field(default_factory=list)
    before: Values = field(default_factory=dict)
    after: Values = field(default_factory=dict)


def watch(training: Training) -> Watched:
    """Train, beside a note of everything that goes into an update."""
    watched = Watched()
    names = {parameter: name for name, parameter in training.backend.model.named_parameters()}

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        rates = {names[each]: group["lr"] for group in optimizer.param_groups for each in group["params"]}
        watched.rates.append(rates)
        watched.gradients.append({name: numbers(parameter.grad) for parameter, name in names.items() if name in rates})

    training.backend.optimizer.register_step_pre_hook(note)
    watched.before = {name: numbers(parameter) for parameter, name in names.items()}
    assert training.run() == 0
    watched.after = {name: numbers(parameter) for parameter, name in names.items()}
    return watched


def numbers(tensor: torch.Tensor) -> NDArray[np.float64]:
    return tensor.detach().double().numpy().copy()


def half_cosine(step: int, *, peak: float, least: float = 0.0, warmup: float = WARMUP, epochs: float = EPOCHS) -> float:
    """The rate of an update, the first of which is 0: `step * BATCH` images were seen before it."""
    epoch = step * BATCH / IMAGES
    if epoch < warmup:
        return peak * epoch / warmup
    return least + (peak - least) * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup))) / 2


def adamw(
    weight: NDArray[np.float64], gradients: list[NDArray[np.float64]], rates: list[float], decay: float, beta2: float
) -> NDArray[np.float64]:
    """Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2; beta1 is 0.9."""
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    for count, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        first = 0.9 * first + 0.1 * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        step = (first / (1 - 0.9**count)) / (np.sqrt(second / (1 - beta2**count)) + 1e-8)
        weight = weight - rate * (step + decay * weight)
    return weight


def sgd(
    weight: NDArray[np.float64], gradients: list[NDArray[np.float64]], rates: list[float], decay: float, momentum: float
) -> NDArray[np.float64]:
    """Heavy ball, the decay part of the gradient: Sutskever et al., ICML 2013, without Nesterov's correction."""
    velocity = np.zeros_like(weight)
    for gradient, rate in zip(gradients, rates, strict=True):
        velocity = momentum * velocity + gradient + decay * weight
        weight = weight - rate * velocity
    return weight


def lars(
    weight: NDArray[np.float64], gradients: list[NDArray[np.float64]], rates: list[float], decay: float
) -> NDArray[np.float64]:
    """You et al., 2017, algorithm 1: trust 0.001, momentum 0.9; vectors take plain momentum's step, undecayed."""
    velocity = np.zeros_like(weight)
    for gradient, rate in zip(gradients, rates, strict=True):
        local = 1.0
        if weight.ndim > 1:
            gradient = gradient + decay * weight
            local = 0.001 * np.linalg.norm(weight) / np.linalg.norm(gradient)
        velocity = 0.9 * velocity + local * gradient
        weight = weight - rate * velocity
    return weight


def assert_updated(
    watched: Watched,
    rates: Callable[[str], list[float]],
    update: Callable[[str, NDArray[np.float64], list[NDArray[np.float64]], list[float]], NDArray[np.float64]],
) -> None:
    """Every trained weight had the expected rate in every update and ends where the formula says."""
    assert {name for name in watched.after if not np.array_equal(watched.after[name], watched.before[name])} <= set(
        watched.rates[0]
    )
    for name in watched.rates[0]:
        expected = rates(name)
        assert [each[name] for each in watched.rates] == pytest.approx(expected, rel=1e-12, abs=0), name
        wanted = update(name, watched.before[name], [each[name] for each in watched.gradients], expected)
        assert np.abs(wanted - watched.before[name]).max() > 1e-5, f"{name}: an update too small to be judged"
        rounding = 4e-6 * max(1.0, np.abs(wanted).max())  # float32's, of some twenty updates
        assert np.allclose(watched.after[name], wanted, rtol=0, atol=rounding), name


BLOCK_WEIGHTS = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")
BLOCK_VECTORS = (
    "norm1.weight", "norm1.bias", "attn.qkv.bias", "attn.proj.bias", "norm2.weight", "norm2.bias", "mlp.fc1.bias",
    "mlp.fc2.bias",
)  # fmt: skip
BLOCKS = ("blocks.0", "blocks.1")


def of_blocks(blocks: tuple[str, ...], names: tuple[str, ...]) -> set[str]:
    return {f"{block}.{name}" for block in blocks for name in names}


def decays(watched: Watched, decayed: set[str], kept: set[str], weight_decay: float) -> dict[str, float]:
    """Decay by name; the two lists are the names of all that is trained."""
    assert decayed | kept == watched.rates[0].keys()
    return dict.fromkeys(decayed, weight_decay) | dict.fromkeys(kept, 0.0)


def test_pretraining_is_adamw_and_weights_alone_decay(dataset):
    """Betas 0.9 and 0.95, blr 0.3 for 256 images: He et al., 2022, table 8."""
    flags = {"model": "mae_vit_micro_patch8", "input_size": 16, "effective_batch_size": BATCH, "weight_decay": 0.5}
    flags |= {"blr": 0.3, "warmup_epochs": WARMUP, "min_lr": 1e-4}
    watched = watch(pretrain_mae.open_training(PretrainMAE(data_path=dataset, **COMMON, **flags)))
    blocks = (*BLOCKS, "decoder_blocks.0")
    linear = ("patch_embed.proj", "decoder_embed", "decoder_pred")
    decay = decays(
        watched,
        of_blocks(blocks, BLOCK_WEIGHTS) | {f"{name}.weight" for name in linear},
        of_blocks(blocks, BLOCK_VECTORS)
        | {f"{name}.bias" for name in linear}
        | {"cls_token", "mask_token", "norm.weight", "norm.bias", "decoder_norm.weight", "decoder_norm.bias"},
        0.5,
    )
    rates = [half_cosine(step, peak=0.3 * BATCH / 256, least=1e-4) for step in range(22)]
    assert rates[0] == 0
    assert_updated(watched, lambda _: rates, lambda name, *given: adamw(*given, decay[name], 0.95))


def test_fine_tuning_is_adamw_and_layers_nearer_to_the_pixels_learn_slower(dataset):
    """Betas 0.9 and 0.999: He et al., 2022, table 9; a layer's rate is 0.5 of the next one's."""
    flags = {"model": "vit_micro_patch8", "input_size": 16, "effective_batch_size": BATCH, "weight_decay": 0.5}
    flags |= {"lr": 0.01, "min_lr": 1e-4, "warmup_epochs": WARMUP, "layer_decay": 0.5, "aa": "", "reprob": 0.0}
    watched = watch(
        finetune_mae.open_training(recipe_flags(data_path=dataset, **{**COMMON, **flags, "num_workers": 0}))
    )
    decay = decays(
        watched,
        of_blocks(BLOCKS, BLOCK_WEIGHTS) | {"patch_embed.proj.weight", "head.weight"},
        of_blocks(BLOCKS, BLOCK_VECTORS)
        | {"cls_token", "pos_embed", "patch_embed.proj.bias", "fc_norm.weight", "fc_norm.bias", "head.bias"},
        0.5,
    )
    shares = {"cls_token": 0.125, "pos_embed": 0.125, "patch_embed": 0.125, "blocks.0": 0.25, "blocks.1": 0.5}
    shares |= {"fc_norm": 1.0, "head": 1.0}

    def rates(name: str) -> list[float]:
        share = next(share for prefix, share in shares.items() if name.startswith(prefix))
        return [share * half_cosine(step, peak=0.01, least=1e-4) for step in range(22)]

    assert_updated(watched, rates, lambda name, *given: adamw(*given, decay[name], 0.999))


def test_a_probe_is_trained_by_lars_on_the_linear_layer_alone(dataset, tmp_path):
    """Base rate 0.1: He et al., 2022, table 10."""
    torch.manual_seed(0)
    torch.save(create_model("mae_vit_micro_patch8", image_size=16).state_dict(), tmp_path / "mae.pth")
    flags = {"linear_probe": True, "finetune": str(tmp_path / "mae.pth"), "input_size": 16, "weight_decay": 0.5}
    flags |= {"effective_batch_size": BATCH, "blr": 32.0, "warmup_epochs": WARMUP, "num_workers": 0}
    training = finetune_mae.open_training(recipe_flags(data_path=dataset, **{**COMMON, **flags}))
    assert {name for name, each in training.backend.model.named_parameters() if each.requires_grad} == {
        "head.1.weight", "head.1.bias",
    }  # fmt: skip
    watched = watch(training)
    assert watched.rates[0].keys() == {"head.1.weight", "head.1.bias"}
    rates = [half_cosine(step, peak=1.0) for step in range(22)]
    assert_updated(watched, lambda _: rates, lambda _, *given: lars(*given, 0.5))


VIT = {"image_size": 16, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "num_blocks": 1, "batch_size": BATCH}


def test_a_large_vit_is_trained_by_adamw_and_all_parameters_decay(dataset):
    """As vit_10b_fsdp_example: AdamW's own betas, a rise counted in steps, gradients of length 1 at most."""
    flags = {**VIT, "lr": 0.01, "weight_decay": 0.5, "warmup_steps": 3, "clip_grad_norm": 0.1}
    watched = watch(train_vit.open_training(TrainViT(data_path=dataset, **COMMON, **flags)))
    assert {"pos_embed", "patch_embed.proj.bias", "norm.weight", "head.bias"} <= watched.rates[0].keys()
    rates = [half_cosine(step, peak=0.01, warmup=3 * BATCH / IMAGES) for step in range(22)]
    assert rates[3] == pytest.approx(0.01)
    assert_updated(watched, lambda _: rates, lambda _, *given: adamw(*given, 0.5, 0.999))


def test_gradients_are_clipped_by_their_norm_over_all_parameters(dataset):
    """Pascanu et al., ICML 2013. The first update has the rate 0, so that the second one has the same weights."""
    found = {}
    for longest in (0.0, 0.1, 1e6):
        flags = TrainViT(data_path=dataset, **COMMON, **VIT, warmup_steps=3, clip_grad_norm=longest, max_steps=2)
        found[longest] = watch(train_vit.open_training(flags)).gradients
    for step in range(2):
        whole, cut, long = (found[longest][step] for longest in (0.0, 0.1, 1e6))
        length = math.sqrt(sum(float((each**2).sum()) for each in whole.values()))
        assert length > 0.2
        for name, gradient in whole.items():
            assert np.array_equal(long[name], gradient)
            assert np.allclose(cut[name], gradient * 0.1 / length, rtol=1e-4, atol=1e-9)


class AnotherHostSays(Runtime):
    """A host that hears True of another one."""

    def agree(self, said: bool) -> bool:
        return True


def test_a_host_whose_weights_are_finite_ends_with_the_one_whose_are_not(dataset):
    backend = train_vit.open_training(TrainViT(data_path=dataset, **COMMON, **VIT)).backend
    assert backend.not_finite() == []
    backend.runtime = AnotherHostSays("cpu", pin_memory=False)
    assert backend.not_finite() == ["weights of another host"]
    with torch.no_grad():
        backend.model.head.bias[1] = math.inf
    assert backend.not_finite() == ["model/head.bias"]


@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_a_resnet_is_trained_by_sgd_and_its_rate_rises_then_falls_in_steps(dataset, momentum):
    flags = {"model": "tiny_cnn", "image_size": 32, "batch_size": BATCH, "lr": 0.5, "lr_scheduler_type": STEPS}
    flags |= {"lr_scheduler_divide_every_n_epochs": 1.0, "lr_scheduler_divisor": 4.0, "num_warmup_epochs": 0.5}
    flags |= {"momentum": momentum, "weight_decay": 0.1}
    watched = watch(train_resnet.open_training(TrainResNet(data_path=dataset, **COMMON, **flags)))
    epochs = [step * BATCH / IMAGES for step in range(22)]
    rates = [min(1.0, epoch / 0.5) * 0.5 / 4 ** math.floor(epoch) for epoch in epochs]
    assert_updated(watched, lambda _: rates, lambda _, *given: sgd(*given, 0.1, momentum))


def test_the_gradient_of_a_batch_is_the_mean_of_its_parts(dataset):
    """Both have the gradients of the same weights: the first update has the rate 0."""
    found = []
    for parts in (1, 4):
        flags = {**COMMON, **VIT, "warmup_steps": 3, "clip_grad_norm": 0.0, "accum_iter": parts, "max_steps": 2}
        found.append(watch(train_vit.open_training(TrainViT(data_path=dataset, **flags))).gradients)
    for whole, parts in zip(*found, strict=True):
        for name, gradient in whole.items():
            assert np.allclose(parts[name], gradient, rtol=1e-3, atol=1e-6), name


def test_an_epoch_of_several_passes_is_as_long_as_all_of_them(dataset):
    """A dataset whose images count five times, as COCO-dup5: the rate rises and falls five times as slowly."""
    training = train_vit.open_training(
        TrainViT(data_path=dataset, **COMMON, **VIT, warmup_steps=3, lr=0.01, max_steps=5)
    )
    training.loader.order = replace(training.loader.order, passes=5)
    watched = watch(training)
    epochs = [step * BATCH / (5 * IMAGES) for step in range(5)]
    warmup = 3 * BATCH / IMAGES
    assert [each["head.weight"] for each in watched.rates] == pytest.approx([0.01 * each / warmup for each in epochs])


class Nothing(Task):
    """A task without a loss."""

    def parts(self, batch: TorchBatch, positions: range) -> Iterator[torch.Tensor]:
        yield from ()


CPU = torch.device("cpu")


@pytest.mark.parametrize("compiler", ["", "no-such-compiler"])
def test_a_cpu_needs_a_compiler(monkeypatch, tmp_path, compiler):
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=f"a C\\+\\+ compiler: {compiler or 'g..'} was not found; install g"):
        compile_network(nn.Linear(1, 1), CPU)


def test_a_cpu_needs_pythons_headers(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "ls")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(UsageError, match=r"needs Python's headers: .* has no Python\.h; install python3-dev"):
        compile_network(nn.Linear(1, 1), CPU)


def test_xla_compiles_anyway():
    with pytest.raises(UsageError, match="`compile` is for cpu, cuda and tpu; XLA compiles every step anyway"):
        compile_network(nn.Linear(1, 1), torch.device("xla"))


@pytest.mark.parametrize(
    ("device", "is_plain_compiled"), [("cpu", False), ("cuda", False), ("xla", True), ("tpu", True)]
)
def test_a_backend_knows_whether_its_network_is_compiled(device, is_plain_compiled):
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    runtime = Runtime("cpu", pin_memory=False)
    runtime.name = device
    backend = TorchBackend(
        runtime=runtime, model=model, optimizer=optimizer, task=Nothing(model=model, runtime=runtime)
    )
    assert backend.compiles is is_plain_compiled
    model[1].compile()
    assert backend.compiles
