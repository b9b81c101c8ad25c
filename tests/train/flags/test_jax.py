"""The framework of a run: flags that the other one does not have are refused. What they do, runs in JAX show."""

import pytest

from dataprep.errors import UsageError
from train import finetune_mae, pretrain_mae, train_vit


@pytest.mark.parametrize("entry", [pretrain_mae, finetune_mae, train_vit])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"ema_decay": 0.5}, "`ema_decay` is for `framework` jax; leave it out with `framework` torch"),
        ({"tensor_parallel": 2}, "`tensor_parallel` is for `framework` jax"),
        ({"orbax": True}, "`orbax` is for `framework` jax"),
        ({"no_scan": True}, "`no_scan` is for `framework` jax"),
        ({"framework": "jax", "use_xla": True}, "`use_xla` is for PyTorch; leave it out with `framework` jax"),
        ({"framework": "jax", "device": "xla"}, "`device` xla is for PyTorch"),
        ({"framework": "jax", "compile": True}, "`compile` is for PyTorch"),
    ],
)
def test_flags_of_the_other_framework_are_refused(entry, flags, message):
    with pytest.raises(UsageError, match=message):
        entry.command.kind(data_path="x", **flags)


@pytest.mark.parametrize("entry", [pretrain_mae, train_vit])
def test_packs_are_refused_in_jax(entry):
    with pytest.raises(UsageError, match="`pack_tokens` is for PyTorch"):
        entry.command.kind(data_path="x", framework="jax", pack_tokens=64)


@pytest.mark.parametrize("entry", [pretrain_mae, finetune_mae])
@pytest.mark.parametrize("flags", [{"fsdp": True}, {"grad_ckpt": True}])
def test_flags_for_jax_alone_are_refused_with_pytorch(entry, flags):
    with pytest.raises(UsageError, match="is for `framework` jax"):
        entry.command.kind(data_path="x", **flags)
    assert entry.command.kind(data_path="x", framework="jax", **flags).is_jax
