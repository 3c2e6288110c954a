"""
fastai's loaders over shared memory: `import fastai_loaders; fastai_loaders.install()`.

fastai has a DataLoader of its own, no subclass of torch's, and constructs torch's iterators by a
name of its module `fastai.data.load`, so `shmloader.install()` does not reach it. That name is what
this replaces. Tried with fastai 2.8.12.
"""

import fastai.data.load
from torch.utils.data import IterableDataset

import shmloader


class Samples(IterableDataset):
    """What a worker iterates: lists of samples; collating them is left to the worker's slot."""

    def __init__(self, loader):
        self.d = loader  # by this name fastai's worker_init_fn finds it

    def __iter__(self):
        if self.d.dataset is not None:
            self.d.it = iter(self.d.dataset)
        samples = map(self.d.do_item, self.d.sample())
        return iter(self.d.chunkify(sample for sample in samples if sample is not None))


def batches(given):
    """Iterate an epoch of a fastai DataLoader, which gives what it would give to torch's."""
    if not hasattr(given, "served"):  # one loader for all epochs keeps its memory
        given.served = shmloader.DataLoader(
            Samples(given.d),
            batch_size=None,
            collate_fn=given.d.do_batch,
            num_workers=given.num_workers,
            pin_memory=given.pin_memory,
            timeout=given.timeout,
            worker_init_fn=given.worker_init_fn,
        )
    return iter(given.served)


def install():
    """Serve every DataLoader of fastai with workers, in this process, from its next epoch on."""
    fastai.data.load._loaders = (batches, THEIRS[1])


def restore():
    """Let fastai use torch's iterators again."""
    fastai.data.load._loaders = THEIRS


THEIRS = fastai.data.load._loaders  # with workers, and without
