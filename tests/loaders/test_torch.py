"""The PyTorch adapter, PyTorch's own protocols of data and state, and normalisation on the device."""

import gc
import json
import pickle
from contextlib import ExitStack
from itertools import islice

import numpy as np
import pytest

from dataprep.errors import UsageError
from loaders import Packs, Views, mixture, open_loader, open_packs, open_views
from loaders.engine.producer import Buffers
from tests.support.adapters import SMALL, AdapterContract
from tests.support.on_use import on_use

torch, adapter = on_use("torch"), on_use("loaders.torch")
tensors_of = on_use("loaders.torch:_tensors")
batches_of = on_use("loaders.torch:TorchBatches")
DataLoader = on_use("torch.utils.data:DataLoader")
torch_nodes = on_use("torchdata.nodes")
StatefulDataLoader = on_use("torchdata.stateful_dataloader:StatefulDataLoader")
DistributedSampler = on_use("torch.utils.data:DistributedSampler")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class TestTorch(AdapterContract):
    adapter = "torch"

    @staticmethod
    def steps(order):
        return 2 * order.equal_steps


@pytest.fixture
def loader(dataset):
    with open_loader(str(dataset("webdataset")), **SMALL) as loader:
        yield loader


def test_tensors_share_the_loaders_memory(loader):
    batch = next(iter(loader))
    for name, tensor in tensors_of(batch).items():
        assert np.shares_memory(tensor.numpy(), getattr(batch, name))


def test_a_view_of_a_tensor_keeps_the_memory_in_use():
    buffers = Buffers(12_000)
    kept = torch.from_numpy(buffers.take().data.reshape(10, 20, 20, 3)).permute(0, 3, 1, 2)[2]
    gc.collect()
    before, other = kept.clone(), buffers.take()
    other.data[:] = np.random.default_rng(0).integers(1, 255, 12_000)
    assert torch.equal(kept, before)


def test_samples_of_a_relative_path_are_read_where_they_were_opened(dataset, monkeypatch):
    monkeypatch.chdir(dataset("webdataset").parent)
    samples = adapter.TorchSamples.open(dataset("webdataset").name, image_size=16)
    monkeypatch.chdir("/")
    (positions, *_) = adapter.OrderSampler(samples, batch_size=4)
    with open_loader(str(dataset("webdataset")), batch_size=4, image_size=16) as loader:
        expected = next(iter(loader)).keys
    assert [each["key"] for each in pickle.loads(pickle.dumps(samples)).__getitems__(positions)] == expected
    samples.close()


def test_epochs_have_equal_lengths_and_continue_each_other(loader, expected):
    """A Trainer of Lightning, for one, takes the length of the first epoch for all."""
    assert loader.order.steps(0) != loader.order.steps(1)
    batches = adapter.TorchBatches(loader)
    assert len(DataLoader(batches, batch_size=None)) == loader.order.equal_steps
    epochs = [[batch.keys for batch in batches] for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == 3 * [loader.order.equal_steps]
    assert [keys for epoch in epochs for keys in epoch][: len(expected)] == [keys for keys, _ in expected]
    batches.set_epoch(1)
    assert next(iter(batches)).keys == epochs[1][0]
    assert [batch.keys for batch in batches] == epochs[1][1:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samplers_of_pytorch_get_each_sample_once_an_epoch_with_crops_of_its_own(samples, num_workers):
    torch.manual_seed(7)
    batches = DataLoader(samples, batch_size=16, shuffle=True, num_workers=num_workers)
    epochs = [
        {
            key: image.numpy().tobytes()
            for batch in batches
            for key, image in zip(batch["key"], batch["image"], strict=True)
        }
        for _ in range(2)
    ]
    assert [len(epoch) for epoch in epochs] == [len(samples)] * 2
    assert sum(epochs[0][key] == epochs[1][key] for key in epochs[0]) < len(samples) / 10
    shares = [DistributedSampler(samples, num_replicas=2, rank=rank) for rank in range(2)]
    assert {index for share in shares for index in share} == {*range(len(samples))}
    first, second = torch.utils.data.random_split(samples, [0.9, 0.1])
    assert len(first) + len(second) == len([*iter(samples)]) == len(samples)


def test_padded_batches_are_collated_with_fields_and_views(dataset):
    """Some rows of the last step hold no sample."""
    samples = adapter.TorchSamples.open(dataset("webdataset"), "val", image_size=32, fields=("class_name",), views=True)
    ranks = [adapter.OrderSampler(samples, batch_size=12, rank=rank, world_size=6) for rank in range(6)]
    batches = [list(DataLoader(samples, batch_sampler=rank)) for rank in ranks]
    assert sum(int(batch["mask"].sum()) for rank in batches for batch in rank) == len(samples)
    assert not batches[-1][-1]["mask"].all()
    assert all(len(batch["fields"]["class_name"]) == 2 for rank in batches for batch in rank)
    assert batches[-1][-1]["view"].image_height.shape == (2,)
    samples.close()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_dataloader_with_workers_is_refused(loader, start):
    batches = DataLoader(adapter.TorchBatches(loader), batch_size=None, num_workers=2, multiprocessing_context=start)
    with pytest.raises(UsageError, match="expected num_workers=0: the loader has its own workers"):
        next(iter(batches))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 1e-2)])
def test_normalize_is_what_torchvisions_documents_say(dtype, tolerance):
    """The mean is subtracted from values of 0 to 1, and the rest divided by the deviation."""
    dtype = getattr(torch, dtype)
    images_NHWC = torch.arange(2 * 5 * 7 * 3, dtype=torch.int64).mul(37).remainder(256).to(torch.uint8).view(2, 5, 7, 3)
    images_NCHW = adapter.normalize(images_NHWC, mean=MEAN, std=STD, dtype=dtype)
    expected = ((images_NHWC.float() / 255 - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2)
    assert images_NCHW.shape == (2, 3, 5, 7)
    assert images_NCHW.dtype == dtype
    assert images_NCHW.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(images_NCHW.float(), expected, atol=tolerance, rtol=tolerance)


def test_a_batch_moves_to_a_device_with_what_no_device_can_hold(loader):
    batch = next(iter(adapter.TorchBatches(loader)))
    moved = batch.to("meta")
    assert {moved.images.device.type, moved.labels.device.type, moved.mask.device.type} == {"meta"}
    assert (moved.keys, moved.state) == (batch.keys, batch.state)


STEPS = {"batch_size": 12}
PIXELS = {"image_size": 32}


@pytest.fixture(scope="module")
def expected(dataset):
    """Keys and images of the loader's first three epochs, on one rank."""
    with open_loader(str(dataset("webdataset")), **STEPS, **PIXELS) as loader:
        return [(batch.keys, batch.images.copy()) for _ in range(3) for batch in loader]


@pytest.fixture(scope="module")
def samples(dataset):
    samples = adapter.TorchSamples.open(dataset("webdataset"), **PIXELS)
    yield samples
    samples.close()


def epochs_of(ranks, count):
    """Sorted keys of every step of all ranks together, over some epochs."""
    steps = [step for _ in range(count) for step in zip(*ranks, strict=True)]
    return [sorted(key for batch in step for key in key_list(batch)) for step in steps]


def key_list(batch):
    return batch["key"] if isinstance(batch, dict) else batch.keys


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plain_dataloader_over_samples_has_the_loaders_batches(samples, expected, num_workers):
    batches = DataLoader(samples, batch_sampler=adapter.OrderSampler(samples, **STEPS), num_workers=num_workers)
    assert len(batches) == 10
    for batch, (keys, images) in zip([*batches, *batches], expected, strict=False):
        assert batch["key"] == keys
        assert np.array_equal(batch["image"].numpy(), images)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stateful_dataloaders_over_samples_go_on_with_another_number_of_ranks(samples, expected, num_workers):
    def rank(number, world_size):
        sampler = adapter.OrderSampler(samples, rank=number, world_size=world_size, **STEPS)
        return StatefulDataLoader(samples, batch_sampler=sampler, num_workers=num_workers)

    for stop in (5,) if num_workers else (5, 9):  # within an epoch, and after it
        before = [rank(number, 3) for number in range(3)]
        for each in before:
            list(islice(each, stop))
        after = [rank(number, 2) for number in range(2)]
        for each in after:
            each.load_state_dict(before[2].state_dict())
        rest = epochs_of(after, 1)
        assert rest == [sorted(keys) for keys, _ in expected[stop : stop + len(rest)]]


def stateful(loader):
    return StatefulDataLoader(adapter.TorchBatches(loader), batch_size=None)


def nodes(loader):
    return torch_nodes.Loader(torch_nodes.Prefetcher(adapter.batch_node(loader), 2))


@pytest.mark.parametrize("wrapped", [batches_of, stateful, nodes])
def test_batches_go_on_with_another_number_of_ranks_in_whatever_takes_them(dataset, expected, wrapped):
    settings = {**STEPS, **PIXELS}
    with ExitStack() as stack:

        def rank(number, world_size):
            loader = open_loader(str(dataset("webdataset")), rank=number, world_size=world_size, **settings)
            return wrapped(stack.enter_context(loader))

        before = [rank(number, 3) for number in range(3)]
        for each in before:
            list(islice(each, 5))
        state = json.loads(json.dumps(before[1].state_dict()))
        after = [rank(number, 2) for number in range(2)]
        for each in after:
            each.load_state_dict(state)
        rest = epochs_of(after, 2)
    assert rest == [sorted(keys) for keys, _ in expected[5 : 5 + len(rest)]]


@pytest.mark.parametrize("wrapped", [batches_of, stateful, nodes])
def test_evaluations_go_on_after_any_batch_in_whatever_takes_them(dataset, wrapped):
    with ExitStack() as stack:

        def evaluation():
            loader = open_loader(str(dataset("webdataset")), "val", batch_size=2, image_size=32)
            return wrapped(stack.enter_context(loader))

        whole = [batch.keys for batch in evaluation()]
        for done in range(1, len(whole)):
            before, after = evaluation(), evaluation()
            list(islice(before, done))
            after.load_state_dict(before.state_dict())
            assert [batch.keys for batch in after] == whole[done:]
            assert [batch.keys for batch in after] == whole
        ended, after = evaluation(), evaluation()
        list(ended)
        after.load_state_dict(ended.state_dict())
        assert [batch.keys for batch in after] == whole


def test_a_printed_loader_and_batch_show_shapes_and_no_pixels(dataset):
    url, small = str(dataset("webdataset")), {"batch_size": 12, "image_size": 64}
    with (
        open_loader(url, **small) as squares,
        open_packs(url, batch_size=8, packs=Packs(tokens=64, images=4, patch=8)) as packs,
        open_views(url, batch_size=8, views=(Views(size=32),)) as views,
        open_loader(mixture([(url, 1), (dataset("coco"), 1)]), **small, fields=("height",)) as mixed,
    ):
        assert repr(squares) == f"Loader({url!r}, 'train', batch_size=12, image_size=64)"
        assert repr(packs) == f"PackLoader({url!r}, 'train', batch_size=8)"
        assert repr(mixed).startswith("MixtureLoader('mixture of ")
        for loader, images in (
            (squares, "uint8[12, 64, 64, 3]"),
            (packs, "uint8[2, 64, 192]"),
            (views, "(uint8[8, 1, 32, 32, 3])"),
            (mixed, "uint8[12, 64, 64, 3]"),
        ):
            for batch in (next(iter(loader)), next(iter(batches_of(loader)))):
                assert f"images={images}" in repr(batch).replace("torch.", "")
                assert len(repr(batch)) < 500
