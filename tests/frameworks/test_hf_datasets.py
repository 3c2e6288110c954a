"""Hugging Face's datasets give the same batches, whatever their format, and as streams."""

from __future__ import annotations

import numpy
import pytest
import torch

from .needs import needs
from .training import COUNT, WORKERS, label, plain

datasets = needs("datasets")


def table():
    """Make a dataset in memory: 96 pictures (3, 16, 16) float32 and their labels."""
    pictures = numpy.arange(COUNT * 3 * 16 * 16, dtype=numpy.float32).reshape(COUNT, 3, 16, 16)
    columns = {"pictures": list(pictures / pictures.size), "labels": [*map(label, range(COUNT))]}
    features = {
        "pictures": datasets.Array3D((3, 16, 16), "float32"),
        "labels": datasets.Value("int64"),
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def noisy(columns):
    """Augment in the worker, with torch's generator."""
    pictures = torch.as_tensor(numpy.array(columns["pictures"], dtype=numpy.float32))
    return {**columns, "pictures": pictures + torch.rand(pictures.shape) * 0.1}


def columns_of(samples):
    batch = torch.utils.data.default_collate(samples)
    return batch["pictures"], batch["labels"]


@pytest.mark.parametrize("kind", ["torch", "numpy", None])
def test_format(compare, way, kind):
    """Samples of torch, of numpy, or that a transform augments in the workers."""

    def train(way):
        dataset = table().with_format(kind) if kind else table().with_transform(noisy)
        return plain(way.loader(dataset, shuffle=True, collate_fn=columns_of, **WORKERS))

    compare(train, way)


def test_stream(compare, way):
    """An iterable dataset of shards, shuffled and mapped; each worker takes its own shards."""

    def train(way):
        stream = table().to_iterable_dataset(num_shards=4).shuffle(seed=7, buffer_size=16)
        stream = stream.map(noisy).with_format("torch")
        return plain(way.loader(stream, collate_fn=columns_of, **WORKERS))

    compare(train, way)
