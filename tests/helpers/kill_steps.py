"""
The steps of the protocol at which a test can kill a process: their names, and the shared file.

tests/simulation/c/steps.c reads and counts in the same file; the layout stands in both places.
"""

import mmap
import re
import struct
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "SHMLOADER_STEPS"

TRAINER, WORKER = "trainer", "worker"
SIDES = (TRAINER, WORKER)

_STEP = re.compile(r'\bSTEP(?:_COPY|_WORDS)?\("([^"]*)"')

# count, trainer_pid, step, side, passage, deaths, died, died_ns
_HEAD = struct.Struct("=7I4xq24x")
_RECORD = struct.Struct("=56s2I")


def sources():
    """List the files in which a step may stand."""
    return [
        *sorted((ROOT / "csrc").rglob("*.[ch]")),
        *sorted((ROOT / "shmloader").glob("core/*.pyx")),
    ]


def names():
    """List the steps of the sources, in the order of the sources, duplicates included."""
    return [name for path in sources() for name in _STEP.findall(path.read_text())]


class Steps:
    """
    The file that a process of the test build maps: where to die, and how often steps were passed.
    """

    def __init__(self, path, listed):
        """Write the file anew, with no death in it."""
        self.names = listed
        with open(path, "wb") as file:
            file.write(_HEAD.pack(len(listed), *[0] * 7))
            for name in (*listed, ""):
                file.write(_RECORD.pack(name.encode(), 0, 0))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def arm(self, trainer_pid, step=None, side=TRAINER, passage=1, deaths=1):
        """
        Forget all counts, and set which process must die.

        Args:
            trainer_pid: Every other process counts as a worker.
            step: Its name; None: no process dies.
            passage: The first passage of the step on that side that kills, from 1.
            deaths: How many passages kill, one after the other.
        """
        number = len(self.names) if step is None else self.names.index(step)
        head = (trainer_pid, number, SIDES.index(side), passage, 0 if step is None else deaths)
        _HEAD.pack_into(self._map, 0, len(self.names), *head, 0, 0)
        for place, name in enumerate((*self.names, "")):
            _RECORD.pack_into(self._map, self._offset(place), name.encode(), 0, 0)

    def disarm(self):
        """Let no process die from now on."""
        struct.pack_into("=I", self._map, 8, len(self.names))

    @staticmethod
    def _offset(place):
        return _HEAD.size + place * _RECORD.size

    @property
    def died(self):
        """How many processes have died so far."""
        return _HEAD.unpack_from(self._map)[6]

    @property
    def died_ns(self):
        """When the last of them did, by time.monotonic_ns()."""
        return _HEAD.unpack_from(self._map)[7]

    def passages(self):
        """
        Count the passages of each step: {(name, side): count}, without those never passed.

        A step that is not listed counts under the empty name.
        """
        counts = {}
        for place, name in enumerate((*self.names, "")):
            _, *passed = _RECORD.unpack_from(self._map, self._offset(place))
            counts.update({(name, side): n for side, n in zip(SIDES, passed, strict=True) if n})
        return counts
