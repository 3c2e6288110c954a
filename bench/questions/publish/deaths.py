"""What each subscriber gets while others die, stop or come, by our publisher and TensorSocket's."""

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from bench.driver import alone
from bench.loads import Made
from bench.question import Options
from bench.questions.publish import parts, peer

_STEP_S = 0.02  # of a trainer
_STOPPED_S = 5.0
_AFTER = 10  # batches of the one that something happens to
_LONGEST_S = 45.0  # of a run: what has not ended then hangs
_ROWS, _BATCHES = 4, 40
# Samples that are full of their index, so that a batch which was overwritten is seen.
_LOAD = parts.Load(
    Made(_ROWS * _BATCHES, lambda index: (torch.full((5000,), float(index)), index)),
    _ROWS,
    lambda samples, indices: bool((samples == indices[:, None]).all()),
)


def _read(pipe: Any, way: str, ports: list[int], epochs: int) -> None:
    with parts.taken(way, _LOAD, ports) as batches:
        for _ in range(epochs):
            for samples, indices in batches:
                time.sleep(_STEP_S)
                pipe.send(indices.tolist() if _LOAD.is_whole(samples, indices) else [])


class Run:
    """A publisher, its readers, to the first of which something happens, and their time."""

    def __init__(self, way: str, subscribers: int) -> None:
        self._way, self._ports = way, peer.free_ports()
        self._until = time.monotonic() + _LONGEST_S
        self.publisher = parts.Part(parts.hand_on, way, _LOAD, self._ports, 2, subscribers)
        self.parts = [self.publisher]
        self.readers = [self.reader() for _ in range(subscribers)]

    def reader(self, epochs: int = parts.EPOCHS) -> parts.Part:
        """Have one more subscribe."""
        self.parts.append(parts.Part(_read, self._way, self._ports, epochs))
        return self.parts[-1]

    def listen(self, is_enough: Callable[[], bool], seconds: float = _LONGEST_S) -> None:
        """Hear what is said, until that is enough, so many seconds or all the time is over."""
        parts.listen(self.parts, is_enough, min(self._until, time.monotonic() + seconds))

    def came(self, *readers: parts.Part, epochs: int = parts.EPOCHS) -> str:
        """Wait for the ends of some. Returns what they took, and how they ended."""
        self.listen(parts.have_ended(readers))
        wanted = _LOAD.due(2 * parts.EPOCHS)
        return ", ".join(sorted({_outcome(each, wanted, epochs * _BATCHES) for each in readers}))


def _outcome(reader: parts.Part, wanted: list[list[int]], batches: int) -> str:
    found = parts.right(reader.said, wanted)
    wrong = len(reader.said) - found
    text = f"{found} of {batches}" if found < batches else f"all {batches}"
    text += f", {wrong} wrong" if wrong else ""
    return text + {"ends": "", None: ", then it hangs"}.get(reader.end, f", then {reader.end}")


def _one_dies(run: Run) -> str:
    run.readers[0].signal(signal.SIGKILL)
    return run.came(*run.readers[1:])


def _all_die(run: Run) -> str:
    for reader in run.readers:
        reader.signal(signal.SIGKILL)
    run.listen(parts.have_ended([run.publisher]), 5)
    return "the publisher ends" if run.publisher.end == "ends" else "the publisher waits on"


def _publisher_dies(run: Run) -> str:
    run.publisher.signal(signal.SIGKILL)
    return run.came(*run.readers)


def _one_stops(run: Run) -> str:
    run.readers[0].signal(signal.SIGSTOP)
    run.listen(lambda: False, _STOPPED_S)
    run.readers[0].signal(signal.SIGCONT)
    others = run.came(*run.readers[1:])
    return f"the others: {others}; itself: {run.came(run.readers[0])}"


def _one_is_late(run: Run) -> str:
    run.readers[0].signal(signal.SIGKILL)
    run.listen(parts.have_ended(run.readers[:1]))
    late = run.reader(1)
    others = run.came(*run.readers[1:])
    return f"the others: {others}; itself: {run.came(late, epochs=1)}"


def _one_too_many(run: Run) -> str:
    late = run.reader(1)
    others = run.came(*run.readers)
    return f"those announced: {others}; one more: {run.came(late, epochs=1)}"


# What happens, how, and what must come of it with ours.
EVENTS: dict[str, tuple[Callable[[Run], str], str | None]] = {
    "kill -9 of one of three": (_one_dies, "all 80"),
    "kill -9 of all": (_all_die, "the publisher ends"),
    "kill -9 of the publisher": (_publisher_dies, None),
    f"one of three is stopped for {_STOPPED_S:g} s": (
        _one_stops,
        "the others: all 80; itself: all 80",
    ),
    "another comes for one that died, and reads an epoch": (
        _one_is_late,
        "the others: all 80; itself: all 40",
    ),
    "one more than the three comes": (
        _one_too_many,
        "those announced: all 80; one more: 0 of 40, then RuntimeError",
    ),
}


def run(way: str, event: str) -> dict:
    """Run two epochs, in which one thing happens."""
    happens, due = EVENTS[event]
    playing = Run(way, 3)
    try:
        playing.listen(lambda: all(len(each.said) >= _AFTER for each in playing.readers))
        said = happens(playing)
    finally:
        for part in playing.parts:
            part.stop()
    return {"said": said, "correct": due in (None, said)}


def records(_: Options) -> Iterator[dict]:
    """Yield a row for each event."""
    theirs = peer.here()
    for event in EVENTS:
        ours = alone(partial(run, parts.PUBLISH, event))
        said = {way: alone(partial(run, way, event))["said"] for way in theirs}
        all_said = {"shmloader": ours["said"], peer.label: None, **said}
        yield {"what happens": event, **all_said, "correct": ours["correct"]}
