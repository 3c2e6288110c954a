"""Loaders and datasets of other projects: classes that reach into torch's DataLoader."""

import inspect
import os
import threading
from multiprocessing.context import ForkContext
from pathlib import Path

import torch
from torch.utils.data import Dataset, get_worker_info

# A loader over eight numbers has four batches.
IN_TWO_WORKERS = {"batch_size": 2, "num_workers": 2, "multiprocessing_context": "fork"}
BATCHES = [[0, 1], [2, 3], [4, 5], [6, 7]]


def numbers(batches):
    """Return the batches as lists."""
    return [batch.tolist() for batch in batches]


def is_gone(pid):
    """Returns True if a process has ended and been reaped."""
    return not Path("/proc", str(pid)).exists()


def pids_of(iterator):
    return [worker.pid for worker in iterator._workers]


class WorkerFacts(Dataset):
    """Each sample holds what a worker knows of itself."""

    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 4

    def __getitem__(self, index):
        info = get_worker_info()
        return {
            "id": info.id,
            "workers": info.num_workers,
            "seed": info.seed,
            "dataset": info.dataset is self and info.dataset.name,
            "method": info.worker_method,
            "type": type(info).__qualname__,
            "torch_threads": torch.get_num_threads(),
            "thread_name": Path("/proc/self/comm").read_text().strip(),
            "is_main_thread": threading.current_thread() is threading.main_thread(),
            "parent": os.getppid(),
        }


class ThreadContext(ForkContext):
    """A context whose processes are threads, as MONAI has one."""

    Process = threading.Thread


def first_of(samples):
    return samples[0]


class Forever:
    """A batch sampler that starts again and again."""

    def __init__(self, batch_sampler):
        self.batch_sampler = batch_sampler

    def __iter__(self):
        while True:
            yield from iter(self.batch_sampler)


def sampled_forever(base):
    """Return a loader class whose one iterator serves all epochs, set past torch's guard."""

    class SampledForever(base):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self):
            return len(self.batch_sampler.batch_sampler)

        def __iter__(self):
            for _ in range(len(self)):
                yield next(self.iterator)

        def reset(self):
            self.iterator._shutdown_workers()
            self.iterator = self._get_iterator()

    return SampledForever


def numbering_batches(base):
    """Return a loader class with an argument of its own that numbers the batches it yields."""

    class NumberingBatches(base):
        def __init__(self, *arguments, first=0, **options):
            super().__init__(*arguments, **options)
            self.first = first

        def __iter__(self):
            return iter(enumerate(super().__iter__(), self.first))

    return NumberingBatches


def rebuilt(loader, **changes):
    """
    Return a loader of the same class, made of the attributes named like its parameters.

    This is how frameworks put in a sampler of their own.
    """
    names = inspect.signature(type(loader).__init__).parameters
    options = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
    return type(loader)(**{**options, "batch_sampler": None, **changes})
