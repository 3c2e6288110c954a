"""
Python's end of the door behind which one process runs at a time, and the file that all map.

tests/simulation/c/door.c is the other end; the layout of the file stands in both places.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.kill_steps import ROOT, names, sources

VARIABLE = "SHMLOADER_SIMULATION"

_HEAD = struct.Struct("=4Qq3Q14Q18I8x")
_ACTOR = struct.Struct("=6IqQ2I16x")
_EVENT = struct.Struct("=BBHI")
_STEP = struct.Struct("=56s2I")
_ACTORS, _EVENTS, _DEATHS = 64, 1 << 16, 14
_SEGMENT_BYTES = 1 << 16
_TRACE_AT = _HEAD.size + _ACTORS * _ACTOR.size
_STEPS_AT = _TRACE_AT + _EVENTS * _EVENT.size + _SEGMENT_BYTES

KINDS = ("step", "line", "parks", "looks", "sleeps", "forks", "leaves", "is killed", "time passes")
FAULTS = (
    "",
    "blocked: no process can go on, and none waits for a time",
    "endless: the run does not end",
    "unwoken: a process parked until its time came, and there was news for it all the while",
    "crowded: more processes than the simulation has places for",
    "two writers: a process has written a shared word that is another one's",
)
FOREVER_NS = (1 << 63) - 1
_UNASKED = 0, 1 << 62  # between these events the turn is given away unasked

_OF_VIEW, _SAYS_NOTHING, _IS_NEWS, _HAS_LOOKED = 1, 2, 4, 8
_NEWS = ("pop: cell read", "ask: granted")  # there was something to be woken for


def _flags(name: str) -> int:
    word = name.split(":")[0]
    flags = _OF_VIEW if word in ("view", "clock") else 0
    flags |= _SAYS_NOTHING if word in ("view", "clock", "disarm") else 0
    flags |= _HAS_LOOKED if name == "park: begun" else 0
    return flags | (_IS_NEWS if name in _NEWS else 0)


@dataclass(frozen=True)
class Event:
    """One thing that happened: which process, what kind of thing, and which of that kind."""

    actor: int
    kind: str
    number: int


class Play:
    """The file: what the door needs to know of a run, and what it notes."""

    def __init__(self, path: Path) -> None:
        """Write a file without a run."""
        self.steps = names()
        path.write_bytes(bytes(_STEPS_AT + (len(self.steps) + 1) * _STEP.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        for place, name in enumerate(self.steps):
            _STEP.pack_into(
                self._map, _STEPS_AT + place * _STEP.size, name.encode(), _flags(name), 0
            )

    def begin(
        self,
        seed: int,
        *,
        switch_one_in: int,
        fire_one_in: int,
        slow: int,
        has_views: bool,
        scribbles: bool,
        forges_at: int,
        deaths: tuple[int, ...],
        dies_at: tuple[str, int],
        events_most: int,
    ) -> None:
        """Write what the next run is to be, and forget the last one."""
        name, passage = dies_at
        death_step = self.steps.index(name) + 1 if name in self.steps else 0
        struck = [*deaths, *[0] * (_DEATHS - len(deaths))]
        self._map[:_TRACE_AT] = bytes(_TRACE_AT)
        _HEAD.pack_into(
            self._map,
            0,
            *(_scattered(seed), 0, 0, 0, 0, events_most, *_UNASKED, *struck),
            *(len(deaths), 0, switch_one_in, fire_one_in, slow, int(has_views)),
            *(0, 0, 0, 0, len(self.steps), 0, 0, int(scribbles)),
            *(0, death_step, passage, forges_at),
        )

    def _read(self) -> tuple[int, ...]:
        return _HEAD.unpack_from(self._map)

    @property
    def hash(self) -> int:
        """Of all that happened."""
        return self._read()[1]

    @property
    def events(self) -> int:
        """How many things happened."""
        return self._read()[2]

    @property
    def died(self) -> int:
        """How many processes the door has killed."""
        return self._read()[23]

    @property
    def switches(self) -> int:
        """How often another process went on."""
        return self._read()[33]

    @property
    def fault(self) -> str:
        """What ended the run, in words; empty if nothing of the door's did."""
        number, actor = self._read()[30:32]
        at = f", byte {self._read()[34]}" if number == len(FAULTS) - 1 else ""
        return f"{FAULTS[number]} (process {actor}{at})" if number else ""

    def pids(self) -> list[int]:
        """The processes of the run so far."""
        count = self._read()[28]
        actors = [_ACTOR.unpack_from(self._map, 256 + i * _ACTOR.size) for i in range(count)]
        return [actor[1] for actor in actors if actor[1]]

    def trace(self) -> list[Event]:
        """What happened, as far back as it was kept."""
        count = self.events
        found = []
        for number in range(max(0, count - _EVENTS), count):
            actor, kind, _, which = _EVENT.unpack_from(
                self._map, _TRACE_AT + number % _EVENTS * _EVENT.size
            )
            found.append(Event(actor, KINDS[kind], which))
        return found


def _scattered(seed: int) -> int:
    """Make a state of the generator, which must not be 0, of any seed."""
    word = (seed + 1) * 0x9E3779B97F4A7C15 % (1 << 64)
    return (word ^ word >> 31) or 1


_STEP_NAME = re.compile(r'\bSTEP(?:_COPY|_WORDS)?\("([^"]*)"')


def places_of_steps() -> dict[str, str]:
    """Say where each step stands, as file:line."""
    found = {}
    for path in sources():
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            for name in _STEP_NAME.findall(line):
                found[name] = f"{path.relative_to(ROOT)}:{number}"
    return found


class Door:
    """The functions of door.c, in the processes of a run."""

    def __init__(self) -> None:
        found = importlib.util.find_spec("shmloader.core._core")
        assert found is not None and found.origin is not None, "the package was built"
        # Under the interpreter's lock: a process of a run has one thread that runs Python.
        library = ctypes.PyDLL(found.origin)
        self.is_open = False
        self._begin = library.door_begin
        self._close = library.door_close
        self.reserve = library.door_reserve
        self.reserve.argtypes = [ctypes.c_bool]
        self._arrive = library.door_arrive
        self.line = library.door_line
        self.polls = library.door_polls
        self.leave = library.door_leave
        self.meet = library.door_meet
        self.killed = library.door_killed
        self._look = library.door_look
        self._look.argtypes = [ctypes.c_int64, ctypes.c_bool]
        self._look.restype = ctypes.c_bool
        self._sleep = library.door_sleep
        self._sleep.argtypes = [ctypes.c_int64]
        self._now = library.door_now_ns
        self._now.restype = ctypes.c_int64

    def open(self) -> None:
        """Begin a run: this process is its first, and has the turn."""
        self.is_open = True
        self._begin()

    def arrive(self, number: int) -> None:
        """Be that process of the run, from when its turn has come."""
        self.is_open = True
        self._arrive(number)

    def close(self) -> None:
        """Take no part any more; those that still do never go on."""
        self.is_open = False
        self._close()

    def now_s(self) -> float:
        """The virtual time."""
        return self._now() / 1e9

    def look(self, deadline_s: float | None, has_acted: bool) -> bool:
        """Let others go on until something has happened. Returns True if the time has come."""
        deadline_ns = FOREVER_NS if deadline_s is None else int(deadline_s * 1e9)
        return self._look(deadline_ns, has_acted)

    def sleep(self, for_s: float) -> None:
        """Let others go on for so long."""
        self._sleep(self._now() + math.ceil(for_s * 1e9))  # never none: the time would stand still
