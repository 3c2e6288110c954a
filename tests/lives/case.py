"""
A case: a loader, its dataset and sampler, and what happens to it; drawn from a seed.

It is plain data, so it prints as the program that replays it.
"""

from __future__ import annotations

import random
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

# What defines the bits, so that the undisturbed loader lives through it too.
SHAPING = ("break", "close", "draw", "again", "other")
# What must change nothing.
HOSTILE = ("kill", "stop", "resume", "keep", "fork")

MAPS = ("map", "getitems", "stateful", "subset")
ITERABLE = ("iterable", "sized", "counting", "following")
DATASETS = (*MAPS, *ITERABLE)
STATEFUL = ("stateful", "counting")  # what they count is part of their state
SAMPLERS = (
    *("sequential", "shuffled", "generator", "own", "replacement", "drop_last", "lists", "ranks"),
    *("ranks in order", "stateful", "stateful lists"),
)
LISTS = ("drop_last", "lists", "stateful lists")  # samplers of batches


class Brief:
    """A dataclass that prints what is not as by default, in quotes that a shell leaves alone."""

    def __repr__(self) -> str:
        words = []
        for each in fields(self):  # type: ignore[arg-type]
            value, make = getattr(self, each.name), each.default_factory
            if value != (each.default if make is MISSING else make()):
                words.append(f"{each.name}={value!r}")
        return f"{type(self).__name__}({', '.join(words)})".replace("'", '"')


@dataclass(frozen=True, repr=False)
class Data(Brief):
    """
    A dataset.

    Attributes:
        kind: One of DATASETS.
        samples: How many it has.
        wait_ms: How long each eighth sample waits, as for a disk; the others wait a quarter of it.
        leak_bytes: What a worker keeps of each sample.
        width: Numbers in the payload of a sample; it varies with its index, if the samples are not
            stacked.
        raises: The sample that raises an error; None: none.
    """

    kind: str = "map"
    samples: int = 12
    wait_ms: float = 0
    leak_bytes: int = 0
    width: int = 4
    raises: int | None = None


@dataclass(frozen=True, repr=False)
class Event(Brief):
    """
    Something that happens before a batch is asked for.

    Attributes:
        what: One of SHAPING or HOSTILE.
        epoch: Its epoch.
        batch: The batch; -1: before the epoch begins. If there are fewer, behind the loop.
        number: The worker to kill or stop, or for how many batches the rest goes on.
    """

    what: str
    epoch: int = 0
    batch: int = 0
    number: int = 0


@dataclass(frozen=True, repr=False)
class Case(Brief):
    """
    A loader and its life.

    Attributes:
        data: Its dataset.
        sampler: One of SAMPLERS.
        torch: Arguments of torch's DataLoader.
        ours: Options of this project's.
        epochs: How many there are.
        events: What happens in them.
        seed: For every generator.
    """

    data: Data = Data()
    sampler: str = "sequential"
    torch: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)
    epochs: int = 1
    events: tuple[Event, ...] = ()
    seed: int = 0

    @property
    def is_iterable(self) -> bool:
        """True if the dataset is iterable-style."""
        return self.data.kind in ITERABLE

    @property
    def is_persistent(self) -> bool:
        """True if workers live on between epochs."""
        return bool(self.torch.get("persistent_workers", False))

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return int(self.torch.get("num_workers", 0))

    def has(self, *kinds: str) -> bool:
        """Returns True if one of these events happens."""
        return any(event.what in kinds for event in self.events)


def draw(seed: int) -> Case:
    """
    Draw a case.

    Each option is drawn alone; what it needs beside it comes more often then, so that two or three
    of them meet.
    """
    chance = random.Random(seed)
    ours = _options(chance)
    for_maps = {"assignment", "fetch_threads", "worker_bytes", "max_workers"} & ours.keys()
    kinds = MAPS if for_maps and chance.random() < 0.9 else DATASETS
    data = _data(chance, chance.choice(kinds), "worker_bytes" in ours)
    sampler = "sequential" if data.kind in ITERABLE else chance.choice(SAMPLERS)
    torch = _torch_arguments(chance, sampler, ours)
    if sampler == "replacement":  # torch refuses it when it is iterated
        data = replace(data, samples=max(1, data.samples))
    epochs = chance.choice((1, 2, 2, 3, 3, 4))
    events = _events(chance, epochs, torch, ours)
    return Case(data, sampler, torch, ours, epochs, events, seed)


def on_a_gpu(case: Case) -> Case:
    """Have a case pin its batches, or copy them to the device."""
    torch = {**case.torch, "num_workers": max(1, case.workers)}
    ours = {name: value for name, value in case.ours.items() if name != "device"}
    if case.seed % 2:
        return replace(case, torch={**torch, "pin_memory": True}, ours=ours)
    torch.pop("pin_memory", None)
    return replace(case, torch=torch, ours={**ours, "device": "cuda"})


def _options(chance: random.Random) -> dict[str, Any]:
    """Draw options; those that do not go together are left out where they are tried."""
    choices: dict[str, tuple[float, tuple[Any, ...]]] = {
        "resumable": (0.4, (True,)),
        "restarts": (0.3, (50,)),
        "worker_bytes": (0.25, (1 << 21, 1 << 24)),
        "assignment": (0.25, ("dynamic",)),
        "fetch_threads": (0.15, (1, 3, 40)),
        "max_workers": (0.2, (1, 2, 4)),
        "slots": (0.25, (1, 2, 3, 5, 8)),
        "slot_bytes": (0.1, (1, 100_000)),
        "ring_bytes": (0.1, (1 << 25, 1 << 28)),
        "keep_pages": (0.2, (False,)),
        "nice": (0.05, (1,)),  # a busy machine gives nothing to more
        "device": (0.1, ("cpu", "cuda", "cuda")),
    }
    names = [name for name, (share, _) in choices.items() if chance.random() < share]
    needs_seeds = {"assignment", "fetch_threads"} & {*names}
    if chance.random() < (0.7 if needs_seeds else 0.3) or "max_workers" in names:
        names.append("seed_by")
    chance.shuffle(names)  # so that each is left out as often where two do not go together
    choices["seed_by"] = (1, ("batch",))
    return {name: chance.choice(choices[name][1]) for name in names}


def _data(chance: random.Random, kind: str, leaks: bool) -> Data:
    return Data(
        kind=kind,
        samples=chance.choice((0, 1, 3, 7, 12, 20, 20, 33, 60)),
        wait_ms=chance.choice((1.0, 4.0, 10.0)) if chance.random() < 0.3 else 0,
        leak_bytes=chance.choice((1 << 18, 1 << 21)) if leaks and chance.random() < 0.8 else 0,
        width=chance.choice((0, 1, 4, 100, 5_000, 100_000)),
        raises=chance.randrange(20) if chance.random() < 0.05 else None,
    )


def _torch_arguments(chance: random.Random, sampler: str, ours: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {"num_workers": chance.choice((0, 1, 1, 2, 2, 2, 2, 3))}
    if sampler not in LISTS:
        given["batch_size"] = chance.choice((None, 1, 2, 3, 3, 5))
        if given["batch_size"] is not None and chance.random() < 0.2:
            given["drop_last"] = True
    if given["num_workers"]:
        given["persistent_workers"] = chance.random() < 0.5
        if chance.random() < 0.3:
            given["prefetch_factor"] = chance.choice((1, 3, 5))
        if chance.random() < 0.25:
            given["in_order"] = False
        if chance.random() < 0.005:  # each of their workers imports torch
            given["num_workers"] = 1
            given["multiprocessing_context"] = chance.choice(("forkserver", "spawn"))
        if chance.random() < 0.2:
            given["timeout"] = 60
        if chance.random() < 0.2:
            given["worker_init_fn"] = "draws"
    if chance.random() < 0.3:
        given["collate_fn"] = "list"
    if chance.random() < 0.1:
        given["pin_memory"] = True
    return given


def _events(
    chance: random.Random, epochs: int, torch: dict[str, Any], ours: dict[str, Any]
) -> tuple[Event, ...]:
    """Draw what happens, and give the options that it needs."""
    kinds = [*SHAPING, *HOSTILE, "kill", "resume"]
    events = []
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4))):
        what = chance.choice(kinds)
        if what in ("kill", "stop") and not torch["num_workers"]:
            continue
        # It takes as long as the timeout, in which a replacement has to start.
        if what == "stop" and ("multiprocessing_context" in torch or chance.random() < 0.9):
            continue
        batch = chance.choice((-1, 0, 0, 1, 2, 3, 5, 8, 99))
        events.append(Event(what, chance.randrange(epochs), batch, chance.randrange(4)))
        if what in ("kill", "stop"):
            ours["restarts"] = 50
        if what == "stop":
            torch["timeout"] = 3
    return tuple(events)
