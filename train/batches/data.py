"""The loaders of a training run: over a dataset, over plain data that are indexed first, or of images without content.

Shapes: N images of this host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dataprep.arrays import np
from dataprep.cloud.placement import guard, url_to_read
from dataprep.dataset.adopted import is_adopted, open_named_data, refuse_changed
from dataprep.dataset.manifest import no_dataset, read_manifest
from dataprep.dataset.records import unlabelled
from dataprep.dataset.views import address, viewed
from dataprep.errors import UsageError
from dataprep.messages import counted
from dataprep.storage import absolute, open_storage
from dataprep.storage.gcs_client import bill
from loaders.config import LoaderConfig
from loaders.dataset import MIXTURE_SUFFIX, open_dataset
from loaders.engine.batch import Batch
from loaders.fetch.index import DEADLINE_S, with_deadline
from loaders.fetch.plain import indexed, say
from loaders.loader import Loader, PackLoader
from loaders.mixtures.loader import Mixture, MixtureLoader, mixture
from loaders.order import Order, check_world

TRAIN = ("train", "training")
VALIDATION = ("val", "validation", "valid", "validate", "test")
"""Names of splits for training (TRAIN) and for evaluation (VALIDATION); the first one that a dataset has is taken."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of each channel, for values of 0..1, that all published ImageNet models use."""
UNCROPPED_SIDE = 224
"""Side in pixels above which fine-tuning resizes images for evaluation to just that side, without a border to crop."""
TRAINING_IMAGES = 1_281_167
VALIDATION_IMAGES = 50_000
"""Numbers of images in ImageNet's splits (TRAINING_IMAGES, VALIDATION_IMAGES)."""
CLASSES = 1000
"""Number of a model's logits, unless another one is given."""


@dataclass(frozen=True, slots=True)
class Data:
    """Data that a run reads: a dataset of `dataprep build`, or data that other tools wrote."""

    url: str
    splits: tuple[str, ...]
    num_classes: int | None
    """Number of classes; None if the data have no labels."""
    mixture: Mixture | None = None
    """The datasets that the data mix."""
    unlabelled: Mapping[str, int] = field(default_factory=dict)
    """Number of images without a label, for each split that has some."""
    images: Mapping[str, int] = field(default_factory=dict)
    """Number of images in an epoch of each split; of a mixture only of the split that is trained on."""
    index_url: str = ""
    """URL of the index of data that other tools wrote; empty if there is none, or `url` is it."""

    def training_loader(self, config: LoaderConfig, sizes: Sequence[tuple[int, int]] = ()) -> Loader:
        """Open a shuffled loader over the split `train`, or over the only split.

        Args:
            config: Settings of the loader.
            sizes: Position and size of batches that grow, as `Loader.ramp_batches` takes them; (): all have one size.

        Raises:
            UsageError: There are several splits and none of them is `train`.
        """
        loader = self._loader(self._train_split, config)
        if isinstance(loader, MixtureLoader):
            loader.end_with_a_whole_batch()
        if sizes:
            loader.ramp_batches(sizes)
        return loader

    def validation_loader(self, config: LoaderConfig) -> Loader | None:
        """Open a loader over every image of the split `val` (or `validation`, or `test`) once; None if there is none.

        Images are neither shuffled nor augmented, whatever the settings say.
        """
        split = self.evaluated_split()
        return None if split is None else self._loader(split, replace(config, shuffle=False, augment=False))

    def loaders(
        self,
        training: LoaderConfig,
        evaluation: LoaderConfig,
        *,
        sizes: Sequence[tuple[int, int]] = (),
        tells: bool = True,
    ) -> tuple[Loader, Loader | None]:
        """Open the loaders of training and evaluation; with `tells`, rank 0 prints a line if no split is evaluated."""
        loader, validation = self.training_loader(training, sizes), self.validation_loader(evaluation)
        if validation is None and tells and training.rank == 0:
            say(
                f"{self.url}: no evaluation, because there is no split val (only {', '.join(self.splits)}); dataprep "
                "convert, build folder and build table with --val-fraction 0.1 make one of a tenth of train"
            )
        return loader, validation

    @property
    def epoch_images(self) -> int:
        """Number of images in an epoch of the training."""
        return self.images[self._train_split]

    def trained_split(self) -> str | None:
        """Return the name of the split that is trained on; None if several could be meant."""
        return self.splits[0] if len(self.splits) == 1 else next((each for each in TRAIN if each in self.splits), None)

    def evaluated_split(self) -> str | None:
        """Return the name of the split that is evaluated on; None if there is none."""
        return next((each for each in VALIDATION if each in self.splits), None)

    @property
    def _train_split(self) -> str:
        split = self.trained_split()
        if split is None:
            named = ", ".join(self.splits)
            raise UsageError(f"{self.url}: no split {TRAIN[0]!r} among {named}; give one by its own folder")
        return split

    def _loader(self, split: str, config: LoaderConfig) -> Loader:
        if self.mixture is not None:
            return self.mixture.open_loader(split, config)
        dataset = open_dataset(
            self.index_url or self.url, split, config.region_policy, compare=False
        )  # open_data has compared it
        return Loader(dataset, config) if config.packs is None else PackLoader(dataset, config)


def open_data(
    data_path: str, *, index_dir: str | None = None, region_policy: str = "refuse", billing_project: str | None = None
) -> Data:
    """Find a run's data, before the first image is read.

    Args:
        data_path: A dataset that `dataprep build` made or `dataprep adopt` indexed; its cheapest copy is read
            if reading it costs money; the file of a mixture of several, such as `mix.json`; or data of other tools: an
            image folder, tars, a TFDS directory. Such data are indexed first, which reads their headers once.
        index_dir: Folder that keeps the index; by default one in the user's cache, with a name made of `data_path`.
        region_policy: Action if reading the bucket from here costs money: `refuse`, `warn` or `off`.
        billing_project: Project that pays for this process's requests to buckets whose reader pays.

    Raises:
        UsageError: There are no data, or reading them costs money and the policy refuses that.
    """
    bill(billing_project)
    if data_path.endswith(MIXTURE_SUFFIX):
        guard(data_path, region_policy)
        return _mixed(data_path, region_policy)
    named, view = address(data_path)
    data_path = url_to_read(named, region_policy)
    guard(data_path, region_policy)
    url, index = absolute(data_path), ""
    storage = with_deadline(open_storage(url), DEADLINE_S)
    manifest = None if index_dir else read_manifest(storage)
    if view:
        if manifest is None:
            raise no_dataset(storage)
        manifest, url = viewed(open_storage(named), manifest, view), f"{absolute(named)}@{view}"
    if manifest is None:
        index, _ = indexed(storage, index_dir)
        manifest = read_manifest(with_deadline(open_storage(index), DEADLINE_S))
    elif is_adopted(manifest):
        refuse_changed(storage, open_named_data(storage, manifest), manifest, None)
    if manifest is None:
        raise UsageError(f"{data_path}: no data found; give a dataset, an image folder, tars, or a TFDS directory")
    images = {
        split.name: split.samples * split.repeats["count"] // split.repeats["stored"] for split in manifest.splits
    }
    classes = len(manifest.classes) or None
    return Data(url, tuple(images), classes, unlabelled=unlabelled(manifest), images=images, index_url=index)


def classes_of(data: Data, num_classes: int | None, *, evaluates: bool = True) -> int:
    """Return the number of a model's logits: the one that the user gave, else the number of classes in the data.

    Args:
        evaluates: Whether the run also reads the split for evaluation.

    Raises:
        UsageError: The data have no labels, images without one, or more classes than logits.
    """
    if data.num_classes is None:
        raise UsageError(f"{data.url}: no labels; a classifier needs an image folder, or a dataset with classes")
    for split in (data.trained_split(), data.evaluated_split() if evaluates else None):
        if split is not None and (without := data.unlabelled.get(split)):
            raise UsageError(
                f"{data.url}: {counted(without, 'image')} of {split} without a label; a classifier "
                "needs one of every image: leave the others out of the data, or name the field that holds it with "
                "dataprep adopt --labels FIELD"
            )
    if num_classes is not None and num_classes < data.num_classes and not isinstance(data, FakeData):
        raise UsageError(
            f"`num_classes` is {num_classes}, but the data have {data.num_classes:,} classes; give at least "
            f"{data.num_classes:,}"
        )
    return num_classes or data.num_classes


def _mixed(data_path: str, region_policy: str) -> Data:
    """Return the data of a mixture, without classes if one of the datasets that are trained on has no labels."""
    found = mixture(data_path)
    splits = found.split_names()
    split = next((name for name in TRAIN if name in splits), splits[0] if splits else TRAIN[0])
    opened = found.open_dataset(split, region_policy)
    has_labels = all(part.dataset.manifest.classes for part in opened.parts)
    epoch = sum(part.dataset.split.samples * part.dataset.passes for part in opened.parts)
    without = sum(unlabelled(part.dataset.manifest).get(part.dataset.split.name, 0) for part in opened.parts)
    return Data(
        data_path,
        splits,
        len(opened.manifest.classes) or None if has_labels else None,
        found,
        unlabelled={split: without} if without else {},
        images={split: found.spec.epoch_samples or epoch},
    )


class FakeData(Data):
    """Data with the splits of ImageNet, whose images are all black."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("fake", (TRAIN[0], VALIDATION[0]), CLASSES, images={TRAIN[0]: TRAINING_IMAGES})

    def _loader(self, split: str, config: LoaderConfig) -> Loader:
        return FakeLoader(config, TRAINING_IMAGES if split == TRAIN[0] else VALIDATION_IMAGES)


class FakeLoader(Loader):
    """Loader of black images of class 0, with the epochs, positions and masked tail of a loader of real images."""

    def __init__(self, config: LoaderConfig, num_images: int) -> None:
        check_world(config.batch_size, config.rank, config.world_size)
        self.config = config
        self.order = Order(
            shard_samples=(num_images,), seed=config.seed, global_batch=config.batch_size, samples_per_block=1
        )
        self._batch, self._producer = 0, None

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rest of the epoch."""
        self._begin()
        rows, size = self.config.rows, self.config.image_size
        images_NHWC = np.zeros((rows, size, size, 3), np.uint8)
        stop = self._end_of_epoch()
        while self._batch < stop:
            first = self.order.batch_start(self._batch) + self.config.rank
            positions_N = first + self.config.world_size * np.arange(rows)
            mask_N = positions_N < self.order.num_samples if not self.config.shuffle else np.ones(rows, np.bool_)
            keys = [f"fake-{position % self.order.num_samples}" for position in positions_N]
            self._batch += 1
            yield Batch(images_NHWC, np.where(mask_N, 0, -1), keys, mask_N, {}, self.state_dict())
        self._end()

    @property
    def classes(self) -> tuple[str, ...]:
        """No names: the images have no content."""
        return ()

    @cached_property
    def _sequence(self) -> dict[str, object]:
        return {"dataset": "fake", "samples": self.order.num_samples, **self.config.sequence_document()}
