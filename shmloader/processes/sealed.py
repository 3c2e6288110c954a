"""
What workers are started with, pickled once into memory that no process can change.

Every worker maps it and unpickles it by itself, so nothing that is open there is shared by them.
What the pickle refers to by descriptor is kept beside it, under descriptors of its own: those of
the trainer may be closed by the time at which a worker is started.

Some reductions count their readers (torch's of shared memory by name, and of CUDA memory), so one
pickle is good for one reader: such content is pickled for each process again, as torch does.
"""

import contextlib
import io
import mmap
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import context, reduction
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar, Protocol

from shmloader.core import Descriptor
from shmloader.memory import segment
from shmloader.processes.signals import Signals
from shmloader.processes.watching import ParentWatch

# Be a worker: called with the spec, the worker's id and where it goes on.
Succeed = Callable[[Any, int, Any], None]

_COUNTING = b"rebuild_storage_filename", b"rebuild_cuda_tensor"  # such reductions, by their names


class Spec(Protocol):
    """What workers are started with, as far as the code that starts them has to know it."""

    parent: ParentWatch  # of the trainer
    signals: Signals
    is_daemon: bool  # may have no children of multiprocessing's, and ends at its parent's exit


class Sealed:
    """The pickle, on both sides."""

    content: Any = None  # what was pickled, in the process that did

    def __init__(self, file: Descriptor, descriptors: Sequence[Descriptor]) -> None:
        self._file = file
        self._descriptors = descriptors
        self._is_counted = False
        self._was_sent = False

    @classmethod
    def make(cls, content: Any) -> "Sealed":
        """Pickle content."""
        sealed = cls(segment.open_object("shmloader-start"), ())
        collector = Collector()
        with open(sealed._file.fileno(), "wb", closefd=False) as file:
            pickle_for(collector, content, file)
        # Duplicates of what it refers to.
        sealed._descriptors = [Descriptor.opened(os.dup, each) for each in collector.numbers]
        sealed.content = content
        with sealed._mapped() as pickled:
            sealed._is_counted = any(pickled.find(each) >= 0 for each in _COUNTING)
        segment.seal(sealed._file.number, "WRITE", "SHRINK", "GROW", "SEAL")
        return sealed

    @property
    def descriptor_count(self) -> int:
        """How many descriptors go with it."""
        return 1 + len(self._descriptors)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._is_counted and self._was_sent:
            return Sealed.make(self.content).__reduce__()
        self._was_sent = True
        files = [self._file, *self._descriptors]
        return _receive, ([reduction.DupFd(each.fileno()) for each in files],)

    def open(self) -> Any:
        """Unpickle the content, and keep nothing of what it came from."""
        with self._mapped() as pickled, _kept(self._descriptors):
            content = pickle.loads(memoryview(pickled))
        self._file.close()
        return content

    def _mapped(self) -> mmap.mmap:
        # Not read: all that have the file share its offset.
        return mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)


def _receive(duplicates: list[Any]) -> Sealed:
    file, *descriptors = (Descriptor(each.detach()) for each in duplicates)
    return Sealed(file, descriptors)


def run(sealed: Sealed, succeed: Succeed, worker_id: int, progress: Any, signals: Signals) -> None:
    """Be a worker."""
    signals.leave()
    succeed(sealed.open(), worker_id, progress)


class Placed:
    """A descriptor in a pickle, by its place among those that came with it."""

    all: ClassVar[Sequence[int]] = ()  # while a pickle is loaded

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        """Return a descriptor for the one who asks."""
        return os.dup(self.all[self._place])


@contextlib.contextmanager
def _kept(descriptors: Sequence[Descriptor]) -> Iterator[None]:
    """Keep descriptors while their pickle is loaded, and close them."""
    Placed.all = [each.fileno() for each in descriptors]
    try:
        yield
    finally:
        Placed.all = ()
        for each in descriptors:
            each.close()


class Collector:
    """Stands for a process that is being started, and notes the descriptors that it is to have."""

    DupFd = Placed  # stands for a descriptor in the pickle

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def duplicate_for_child(self, descriptor: int) -> int:
        """Return the place of a descriptor among those noted."""
        if descriptor not in self.numbers:
            self.numbers.append(descriptor)
        return self.numbers.index(descriptor)


def pickle_for(process: Any, content: Any, file: Any) -> None:
    """Pickle content as for a process of multiprocessing that is being started."""
    context.set_spawning_popen(process)
    try:
        ForkingPickler(file).dump(content)
    finally:
        context.set_spawning_popen(None)


def pickled_for(process: Any, content: Any) -> bytes:
    """Return such a pickle."""
    file = io.BytesIO()
    pickle_for(process, content, file)
    return file.getvalue()
