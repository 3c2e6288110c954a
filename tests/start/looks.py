"""A dataset whose one sample says what the worker's process is like."""

import multiprocessing
import os
import resource
import signal
import sys
import threading

import numpy
import torch
from torch.utils.data import Dataset, get_worker_info

LIMITS = resource.RLIMIT_NOFILE, resource.RLIMIT_CORE
SIGNALS = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGPIPE,
    signal.SIGCHLD,
    signal.SIGUSR1,
)


def first(samples):
    """Return the one sample of a batch."""
    return samples[0]


def umask():
    """Return the umask."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


class Looks(Dataset):
    """Says what its process is like."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        process = multiprocessing.current_process()
        parent = multiprocessing.parent_process()
        return {
            "cwd": os.getcwd(),
            "environment": dict(os.environ),
            "path": list(sys.path),
            "argv": list(sys.argv),
            "flags": str(sys.flags),
            "cores": sorted(os.sched_getaffinity(0)),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "limits": [resource.getrlimit(each) for each in LIMITS],
            "umask": umask(),
            "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
            "signals": [str(signal.getsignal(each)) for each in SIGNALS],
            "main": getattr(sys.modules["__main__"], "__name__", None),
            "daemon": process.daemon,
            "name": process.name.partition("-")[0],
            "authkey": bytes(process.authkey),
            "parent": (parent.pid, parent.is_alive()),
            "method": multiprocessing.get_start_method(),
            "stdin": sys.stdin.read(),
            "standard": [os.readlink(f"/proc/self/fd/{each}") for each in (0, 1, 2)],
            "threads": [each.name for each in threading.enumerate()],
            "torch threads": torch.get_num_threads(),
            "seed": get_worker_info().seed,
            "draws": (int(numpy.random.randint(1 << 30)), int(torch.randint(1 << 30, ()))),
        }


def look(kind, method, **options):
    """Return what a worker's process is like, of a loader of either class."""
    generator = torch.Generator()
    generator.manual_seed(5)
    loader = kind(
        Looks(),
        num_workers=1,
        collate_fn=first,
        multiprocessing_context=method,
        generator=generator,
        **options,
    )
    return next(iter(loader))
