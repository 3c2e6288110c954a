"""
What test_jax.py runs in processes of their own; each function prints its result as JSON.

JAX is imported inside of them, so that workers, which import this module, do without it.
"""

from __future__ import annotations

import gc
import json

import torch

import shmloader

from .training import SHAPE, WORKERS, Pictures, seed
from .ways import IMPORT, TORCH, spied

# JAX has threads, and says that a fork of its process is likely to hang.
APART = {**WORKERS, "multiprocessing_context": "forkserver", "persistent_workers": True}


class Numbers(Pictures):
    """Samples that say which one they are: (3, 16, 16) float32, and an int64."""

    def __getitem__(self, index):
        return torch.full(SHAPE, float(index)), index


def say(result):
    print(json.dumps(result))


def convert_each_leaf():
    import jax

    jax.config.update("jax_enable_x64", True)  # otherwise JAX has no int64 and copies labels
    shared = []
    with shmloader.DataLoader(Numbers(), **APART) as loader:
        for batch in loader:
            arrays = jax.tree.map(jax.dlpack.from_dlpack, batch)
            shared += [
                (array.unsafe_buffer_pointer() == leaf.data_ptr(), str(array.dtype))
                for array, leaf in zip(arrays, batch, strict=True)
            ]
        say([shared, loader.stats().spilled])


def convert_without_x64():
    import jax

    with shmloader.DataLoader(Numbers(), **APART) as loader:
        _, labels = next(iter(loader))
        array = jax.dlpack.from_dlpack(labels)
        say([str(array.dtype), array.tolist()])


def keep_one_array():
    import jax

    with shmloader.DataLoader(Numbers(), **APART) as loader:
        batches = iter(loader)
        pictures, _ = next(batches)
        address = pictures.data_ptr()
        kept = jax.dlpack.from_dlpack(pictures)
        del pictures, _
        for batch in batches:
            del batch
        gc.collect()
        tickets = [held.ticket for held in loader.held()]
        del batches
        for batch in loader:  # another epoch writes the other slots anew
            del batch
        after_epochs = kept[:, 0, 0, 0].tolist()
        loader.close()
        for batch in loader:
            del batch
        after_close = kept[:, 0, 0, 0].tolist()
        moved = kept.unsafe_buffer_pointer() != address
        say([tickets, after_epochs, after_close, moved])


def train_in_jax(loader):
    """Train a linear model in compiled steps that run on while the loader does."""
    import jax

    def loss_of(weights, pictures, labels):
        scores = pictures[:, :, :4, :4].mean(1).reshape(len(labels), -1) @ weights
        return -jax.nn.log_softmax(scores)[jax.numpy.arange(len(labels)), labels].mean()

    @jax.jit
    def step(weights, pictures, labels):
        loss, slope = jax.value_and_grad(loss_of)(weights, pictures, labels)
        return weights - 0.1 * slope, loss

    weights = jax.numpy.zeros((16, 4))
    losses = []
    for _ in range(2):
        for batch in loader:
            arrays = jax.tree.map(jax.dlpack.from_dlpack, batch)
            del batch  # before the step has run
            weights, loss = step(weights, *arrays)
            losses.append(loss)
    return [loss.item() for loss in losses]


def train_both():
    results = []
    for way in (TORCH, IMPORT):
        seed()
        with spied() as made:
            losses = train_in_jax(way.loader(Pictures(), shuffle=True, **APART))
        results.append((losses, made.ours, made.torchs))
    say(results)
