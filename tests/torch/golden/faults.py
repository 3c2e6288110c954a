"""Things that go wrong in a worker, and a dataset in which they do."""

import functools
import os
import signal
import sys
import time

import torch
from torch.utils.data import get_worker_info

from tests.conformance.made import Frozen, Two, raise_it, raise_two_deep
from tests.helpers.datasets import Computed


class TakesMessage(Exception):
    """Takes its text by keyword and has a class attribute of that name."""

    message = "a default"

    def __init__(self, *, message):
        super().__init__(message)


class ShowsMessage(Exception):
    """Has a property `message`, but takes no such argument."""

    @property
    def message(self):
        return self.args[0]


def raise_during_another():
    try:
        raise OSError(2, "no such picture")
    except OSError:
        return {}["sample"]


EXCEPTIONS = {
    name: functools.partial(raise_it, kind, *arguments)
    for name, kind, *arguments in [
        ("value", ValueError, "sample is broken"),
        ("no_text", ValueError),
        ("stop_iteration", StopIteration, "early"),
        ("os", FileNotFoundError, 2, "no such file", "picture.jpg"),
        ("two_arguments", Two, 4, "sample is broken"),
        ("message_property", ShowsMessage, "sample is broken"),
        ("frozen", Frozen, "sample is broken"),
        ("group", ExceptionGroup, "several", [ValueError("a"), KeyError("b")]),
        ("recursion", RecursionError, "too deep"),
        ("memory", MemoryError, "too big"),
    ]
} | {
    "key": lambda: {}["sample"],
    "unicode": lambda: b"\xff".decode("ascii"),
    "message_keyword": lambda: raise_it(TakesMessage, message="sample is broken"),
    "cause": raise_two_deep,
    "context": raise_during_another,
    "torch": lambda: torch.zeros(2) @ torch.zeros(3),
}


def kill_self_with(number):
    # Long enough for the trainer to wait in next() when it comes, as it would in a real loop.
    time.sleep(0.3)
    os.kill(os.getpid(), number)
    time.sleep(30)


def die_after_a_while(leave):
    # Long enough as well for torch's feeder thread to send the batch before.
    time.sleep(0.3)
    leave()


def leave_silently():
    die_after_a_while(lambda: os._exit(0))


DEATHS = {
    "sigkill": lambda: kill_self_with(signal.SIGKILL),
    "sigsegv": lambda: kill_self_with(signal.SIGSEGV),
    "sigbus": lambda: kill_self_with(signal.SIGBUS),
    "sigterm": lambda: kill_self_with(signal.SIGTERM),
    "sys_exit": lambda: die_after_a_while(lambda: sys.exit(3)),
    "os_exit": lambda: die_after_a_while(lambda: os._exit(3)),
}


def faulty(fault, at=2, worker=None):
    """Eight numbers; asking for one of them goes wrong, or for any in a worker."""

    def number(index):
        if index == at if worker is None else get_worker_info().id == worker:
            fault()
        return torch.tensor([index])

    return Computed(8, number)
