"""fastai, whose loader is no subclass of torch's, by the program in examples/."""

from __future__ import annotations

from contextlib import contextmanager

import numpy
import pytest
import torch

from tests.helpers.segments import in_slots

from .needs import needs
from .shims import example
from .training import Net
from .ways import TorchLoader, Way

needs("fastai.vision.all", "PIL")

from fastai.vision.all import (  # noqa: E402
    SGD,
    Callback,
    ImageDataLoaders,
    Learner,
    RandomResizedCrop,
    TensorImage,
)
from PIL import Image  # noqa: E402

COUNT = 40  # a fifth of them are for validation
BATCH = 8


@contextmanager
def shimmed():
    """Serve fastai for a while."""
    fastai_loaders = example("fastai_loaders")
    fastai_loaders.install()
    try:
        yield
    finally:
        fastai_loaders.restore()


EXAMPLE = Way("example", TorchLoader, shimmed)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Write pictures of four classes into files."""
    folder = tmp_path_factory.mktemp("pictures")
    draw = numpy.random.default_rng(0)
    files = [folder / f"{index:02}_{index % 4}.png" for index in range(COUNT)]
    for file in files:
        Image.fromarray(draw.integers(0, 255, (24, 24, 3), dtype=numpy.uint8)).save(file)
    return files


def label_of(file):
    return file.stem[-1]


def loaders(pictures):
    """Make fastai's loaders over the files: crops at random, by two workers."""
    return ImageDataLoaders.from_path_func(
        pictures[0].parent,
        pictures,
        label_of,
        item_tfms=RandomResizedCrop(16, min_scale=0.5),
        bs=BATCH,
        num_workers=2,
        seed=1,
    )


class Losses(Callback):
    """Note the loss of each step, of training and of validation."""

    def __init__(self):
        self.losses = []

    def after_loss(self):
        self.losses.append(self.learn.loss.item())


def train(pictures):
    """Fit for two epochs. Returns the losses."""
    noted = Losses()
    learner = Learner(
        loaders(pictures),
        Net(),
        loss_func=torch.nn.CrossEntropyLoss(),
        opt_func=SGD,
        cbs=[noted],
        train_bn=False,
    )
    with learner.no_bar(), learner.no_logging():
        learner.fit(2, lr=0.1)
    return noted.losses


def test_learner(compare, pictures):
    """A Learner has torch's losses, in training and validation, two epochs of each."""
    ours = compare(lambda _: train(pictures), EXAMPLE)

    assert 4 == ours.made.ours
    assert 2 * (COUNT // BATCH) == len(ours.losses)


def test_leaves_lie_in_slots(pictures):
    """Pictures keep fastai's type; they and their labels lie in the batch's slot."""
    with shimmed():
        loader = loaders(pictures).train
        loader.after_batch.fs.clear()  # which makes other tensors of the delivered ones
        for batch in loader:
            assert TensorImage is type(batch[0])
            assert all(in_slots(batch))
        stats = loader.fake_l.served.stats()

    assert COUNT * 4 // 5 // BATCH == stats.batches
    assert (0, 0) == (stats.spilled, stats.retired)
