"""What each subscriber gets while others die, stop or come, by our publisher and TensorSocket's."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

import shmloader
from bench.driver import alone
from bench.loads import Made
from bench.question import Options
from bench.questions.publish import peer
from bench.questions.publish.compared import due, right

_OURS = "shmloader"
_NAME = f"deaths-{os.getpid()}"
_ROWS, _BATCHES, _EPOCHS = 4, 40, 2
_STEP_S = 0.02  # of a trainer
_STOPPED_S = 5.0
_AFTER = 10  # batches of the one that something happens to
_LONGEST_S = 45.0  # of a run: what has not ended then hangs
_END_S = 2.0
_CONTEXT = multiprocessing.get_context("fork")


def _numbers() -> Made:
    """Samples that are full of their index, so that a batch which was overwritten is seen."""
    return Made(_ROWS * _BATCHES, lambda index: (torch.full((5000,), float(index)), index))


@dataclass(frozen=True)
class Row:
    """What is run: whose, and what happens in it."""

    way: str
    event: str


class Part:
    """
    A process, and what it has said.

    Attributes:
        came: The batches that it took; [] for one that was not whole.
        end: How it ended; None: it has not.
    """

    def __init__(self, play: Callable[..., Any], *arguments: Any) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_play, args=(play, theirs, arguments))
        self._process.start()
        theirs.close()
        self.came: list[list[int]] = []
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
            self.came.append(said)

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


def _hand_on(pipe: Any, way: str, ports: list[int], subscribers: int) -> None:
    options = {"num_workers": 2, "persistent_workers": True, **_order()}
    if way == _OURS:
        loader = shmloader.DataLoader(_numbers(), **options)
        shmloader.publish(loader, _NAME, subscribers=subscribers)
    else:
        peer.produce(torch.utils.data.DataLoader(_numbers(), **options), ports, subscribers, pipe)


def _order() -> dict[str, Any]:
    generator = torch.Generator()
    generator.manual_seed(1)
    return {"batch_size": _ROWS, "shuffle": True, "generator": generator}


def _read(pipe: Any, way: str, ports: list[int], epochs: int) -> None:
    ours = way == _OURS
    with shmloader.subscribe(_NAME) if ours else nullcontext(peer.consume(ports, _ROWS)) as batches:
        for _ in range(epochs):
            for samples, indices in batches:
                time.sleep(_STEP_S)
                is_whole = bool((samples == indices[:, None]).all())
                pipe.send(indices.tolist() if is_whole else [])


class Run:
    """
    A publisher, its subscribers, and the time that they have.

    Attributes:
        readers: The subscribers; something happens to the first one.
        late: One that came later.
    """

    def __init__(self, way: str, subscribers: int) -> None:
        self._delivery, self._ports = way, peer.free_ports()
        self._until = time.monotonic() + _LONGEST_S
        self.late: Part | None = None
        self.publisher = Part(_hand_on, way, self._ports, subscribers)
        self.readers = [self.reader() for _ in range(subscribers)]

    def reader(self, epochs: int = _EPOCHS) -> Part:
        """Have one more subscribe."""
        return Part(_read, self._delivery, self._ports, epochs)

    @property
    def parts(self) -> list[Part]:
        """All processes."""
        return [self.publisher, *self.readers, *([self.late] if self.late else [])]

    def listen(self, is_enough: Callable[[], bool]) -> None:
        """Hear what is said, until that is enough or the time is over."""
        while not is_enough() and (left_s := self._until - time.monotonic()) > 0:
            open_ = {part.pipe: part for part in self.parts if part.end is None}
            for pipe in multiprocessing.connection.wait([*open_], min(left_s, 0.1)):
                open_[pipe].hear()

    def has_ended(self, *parts: Part) -> Callable[[], bool]:
        """Return what says if all of these have."""
        return lambda: all(part.end is not None for part in parts)


def _one_dies(run: Run) -> str:
    run.readers[0].signal(signal.SIGKILL)
    return _what_came(run, *run.readers[1:])


def _all_die(run: Run) -> str:
    for reader in run.readers:
        reader.signal(signal.SIGKILL)
    began = time.monotonic()
    run.listen(lambda: run.publisher.end is not None or time.monotonic() - began > 5)
    return "the publisher ends" if run.publisher.end == "ends" else "the publisher waits on"


def _publisher_dies(run: Run) -> str:
    run.publisher.signal(signal.SIGKILL)
    return _what_came(run, *run.readers)


def _one_stops(run: Run) -> str:
    run.readers[0].signal(signal.SIGSTOP)
    began = time.monotonic()
    run.listen(lambda: time.monotonic() - began > _STOPPED_S)
    run.readers[0].signal(signal.SIGCONT)
    others = _what_came(run, *run.readers[1:])
    return f"the others: {others}; itself: {_what_came(run, run.readers[0])}"


def _one_is_late(run: Run) -> str:
    run.readers[0].signal(signal.SIGKILL)
    run.listen(run.has_ended(run.readers[0]))
    run.late = run.reader(1)
    others = _what_came(run, *run.readers[1:])
    return f"the others: {others}; itself: {_what_came(run, run.late, epochs=1)}"


def _one_too_many(run: Run) -> str:
    run.late = run.reader(1)
    others = _what_came(run, *run.readers)
    return f"those announced: {others}; one more: {_what_came(run, run.late, epochs=1)}"


def _what_came(run: Run, *readers: Part, epochs: int = _EPOCHS) -> str:
    run.listen(run.has_ended(*readers))
    wanted = due(_ROWS * _BATCHES, 2 * _EPOCHS, **_order())
    told = {_outcome(reader, wanted, epochs * _BATCHES) for reader in readers}
    return ", ".join(sorted(told))


def _outcome(reader: Part, wanted: list[list[int]], batches: int) -> str:
    found = right(reader.came, wanted)
    wrong = len(reader.came) - found
    text = f"{found} of {batches}" if found < batches else f"all {batches}"
    text += f", {wrong} wrong" if wrong else ""
    return text + {"ends": "", None: ", then it hangs"}.get(reader.end, f", then {reader.end}")


EVENTS: dict[str, Callable[[Run], str]] = {
    "kill -9 of one of three": _one_dies,
    "kill -9 of all": _all_die,
    "kill -9 of the publisher": _publisher_dies,
    f"one of three is stopped for {_STOPPED_S:g} s": _one_stops,
    "another comes for one that died, and reads an epoch": _one_is_late,
    "one more than the three comes": _one_too_many,
}
_RIGHT = {
    _one_dies: "all 80",
    _all_die: "the publisher ends",
    _one_stops: "the others: all 80; itself: all 80",
    _one_is_late: "the others: all 80; itself: all 40",
    _one_too_many: "those announced: all 80; one more: 0 of 40, then RuntimeError",
}


def run(row: Row) -> dict:
    """Run two epochs, in which one thing happens."""
    event = EVENTS[row.event]
    parts = Run(row.way, 3)
    try:
        parts.listen(lambda: all(len(each.came) >= _AFTER for each in parts.readers))
        said = event(parts)
    finally:
        for part in parts.parts:
            part.stop()
    return {"said": said, "correct": said == _RIGHT.get(event, said)}


def records(options: Options) -> Iterator[dict]:
    """Yield a row for each event."""
    reason = peer.available()
    if reason:
        print(f"skipped {peer.label}: {reason}", file=sys.stderr)
    for event in EVENTS:
        ours = alone(Row(_OURS, event))
        theirs = None if reason else alone(Row(peer.label, event))["said"]
        said = {_OURS: ours["said"], peer.label: theirs}
        yield {"what happens": event, **said, "correct": ours["correct"]}
