"""
nnU-Net's batches over shared memory: `import nnunet_augmenter; nnunet_augmenter.install()`.

nnU-Net has no DataLoader of torch's: processes of batchgenerators put batches into one queue, and
the trainer looks its class up by name. A class with our loader inside takes that name. Batches come
as they are ready, as before. Tried with batchgenerators 0.25.5 and nnU-Net 2.8.1.
"""

import numpy
import torch
from batchgenerators.dataloading.nondet_multi_threaded_augmenter import NonDetMultiThreadedAugmenter
from threadpoolctl import threadpool_limits
from torch.utils.data import IterableDataset, get_worker_info

import shmloader


class Endless(IterableDataset):
    """The batches that a worker takes from its copy of a batchgenerators loader, without end."""

    def __init__(self, loader, transform, seeds):
        self.loader, self.transform, self.seeds = loader, transform, seeds

    def __iter__(self):
        worker = get_worker_info().id
        self.loader.set_thread_id(worker)
        if self.seeds is not None:
            numpy.random.seed(self.seeds[worker])
            torch.manual_seed(self.seeds[worker])
        with threadpool_limits(1):
            for batch in self.loader:
                yield batch if self.transform is None else self.transform(**batch)


def as_it_is(batch):
    """Collate nothing: the workers' loader made a batch."""
    return batch


class Augmenter(NonDetMultiThreadedAugmenter):
    """Takes the same arguments, starts with the first batch, and ends by `_finish()`."""

    def __init__(
        self,
        data_loader,
        transform,
        num_processes,
        num_cached=2,
        seeds=None,
        pin_memory=False,
        wait_time=0.02,
    ):
        super().__init__(data_loader, transform, num_processes, num_cached, seeds)
        self.loader = shmloader.DataLoader(
            Endless(data_loader, transform, seeds),
            batch_size=None,
            collate_fn=as_it_is,
            num_workers=num_processes,
            prefetch_factor=max(1, num_cached // num_processes),
            pin_memory=pin_memory and torch.cuda.is_available(),
            in_order=False,
        )

    def _start(self):
        self.batches = iter(self.loader)
        self.initialized = True

    def __next__(self):
        if not self.initialized:
            self._start()
        return next(self.batches)

    def _finish(self, timeout=10, force=False):
        self.initialized, self.batches = False, None
        self.loader.close()


def install():
    """Let nnU-Net's trainers use it from now on, in this process."""
    from nnunetv2.training.nnUNetTrainer import nnUNetTrainer

    nnUNetTrainer.NonDetMultiThreadedAugmenter = Augmenter
