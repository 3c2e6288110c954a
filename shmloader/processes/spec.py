"""What workers are started with, as far as the code that starts them has to know it."""

from collections.abc import Callable
from typing import Any, Protocol

from shmloader.processes.signals import Signals
from shmloader.processes.watching import ParentWatch


class Spec(Protocol):
    """The spec of a worker; the rest of it is its client's."""

    parent: ParentWatch  # of the trainer
    signals: Signals
    is_daemon: (
        bool  # it may have no children of multiprocessing's, and is ended at its parent's exit
    )


# Be a worker: called with the spec, the worker's id and where it goes on.
Succeed = Callable[[Any, int, Any], None]
