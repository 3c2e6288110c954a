"""What is read by several trainers, and the processes that hand it on and take it."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

import shmloader
from bench.loads import Made
from bench.questions.publish import peer

EACH, PUBLISH = "a loader each", "publish"
EPOCHS = 2
_NAME = f"bench-{os.getpid()}"
_END_S = 2.0
_CONTEXT = multiprocessing.get_context("fork")


class Load(NamedTuple):
    """What is read, in a shuffled order that is always the same: tensors and their indices."""

    dataset: Made
    rows: int
    is_whole: Callable[[torch.Tensor, torch.Tensor], bool]  # a batch was not overwritten

    @property
    def batches(self) -> int:
        """How many an epoch has."""
        return len(self.dataset) // self.rows

    def opened(self, kind: Any, workers: int, dataset: Any = None) -> Any:
        """Make a loader of it. Workers live on: a start draws from the generator too."""
        order = {"shuffle": True, "generator": torch.Generator().manual_seed(1)}
        given = {"num_workers": workers, "persistent_workers": True, **order}
        return kind(self.dataset if dataset is None else dataset, self.rows, **given)

    def due(self, epochs: int) -> list[list[int]]:
        """List the indices of each batch of some epochs, as torch's loader has them."""
        loader = self.opened(DataLoader, 1, range(len(self.dataset)))
        return [batch.tolist() for _ in range(epochs) for batch in loader]


def right(came: Sequence[list[int]], wanted: Sequence[list[int]]) -> int:
    """Count the batches that came whole and in order; others may lack between them."""
    place = found = 0
    for batch in came:
        if batch in wanted[place:]:
            place = wanted.index(batch, place) + 1
            found += 1
    return found


def hand_on(pipe: Any, way: str, load: Load, ports: list[int], workers: int, readers: int) -> None:
    """Be the publisher, of either kind."""
    if way == PUBLISH:
        loader = load.opened(shmloader.DataLoader, workers)
        shmloader.publish(loader, _NAME, subscribers=readers)
    elif way == peer.label:
        peer.produce(load.opened(DataLoader, workers), ports, readers, pipe)


def taken(way: str, load: Load, ports: list[int], workers: int = 1) -> Any:
    """Open the batches of one trainer until a block ends; workers: of a loader of its own."""
    if way == PUBLISH:
        return shmloader.subscribe(_NAME)
    if way == peer.label:
        return nullcontext(peer.consume(ports, load.rows))
    return closing(load.opened(shmloader.DataLoader, workers))


class Part:
    """A process, all that it has said, and how it ended; None: it has not."""

    def __init__(self, play: Callable[..., Any], *arguments: Any) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_play, args=(play, theirs, arguments))
        self._process.start()
        theirs.close()
        self.said: list[Any] = []
        self.end: str | None = None

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self._process.pid or 0, number)

    def hear(self) -> None:
        """Take what it says next."""
        try:
            said = self.pipe.recv()
        except EOFError:
            said = "dies"
        if isinstance(said, str):
            self.end = self.end or said
        else:
            self.said.append(said)

    def stop(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self.pipe.send("enough")
        self._process.join(_END_S)
        self._process.kill()
        self._process.join()


def _play(play: Callable[..., Any], pipe: Any, arguments: tuple[Any, ...]) -> None:
    try:
        play(pipe, *arguments)
        pipe.send("ends")
    except Exception as error:
        pipe.send(f"{type(error).__name__}")
    os._exit(0)  # at once, because another's sockets may keep a process from its end


def listen(parts: Iterable[Part], is_enough: Callable[[], bool], until: float) -> None:
    """Hear what is said, until that is enough or the time is over."""
    while not is_enough() and (left_s := until - time.monotonic()) > 0:
        open_ = {part.pipe: part for part in parts if part.end is None}
        for pipe in multiprocessing.connection.wait([*open_], min(left_s, 0.1)):
            open_[pipe].hear()


def have_ended(parts: Iterable[Part]) -> Callable[[], bool]:
    """Return what says if all of these have."""
    return lambda: all(part.end is not None for part in parts)
