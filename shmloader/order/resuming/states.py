"""
The dictionary that a loader saves: its keys, its version, and reading one.

It holds ints, str and bytes under keys that are always the same, and what user code returned for
its own state. A later version must go on to read what an earlier one has written.
"""

import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from shmloader.core.past import LOST, Past
from shmloader.order.resuming import generators
from shmloader.worker import snapshot
from shmloader.worker.snapshot import Position

VERSION = 2

# What moment a state is of.
START, EPOCH, END = "start", "epoch", "end"

_OF_POSITION = ("attempts", "epoch", "has_ended", "dataset", "iterator")

OF_SAMPLER = ("sampler_state", "sampler_iterator", "sampler_ended")

FINISHED = "_iterator_finished"  # 0 or 1; Accelerate, which keeps a state for later, writes a bool

# All keys, with what they are before there is anything to say.
UNSET: dict[str, Any] = {
    "shmloader": VERSION,
    "recipe": 0,
    "seed_by": "",
    "rank": 0,
    "ranks": 1,
    "workers": 0,
    "persistent": 0,
    "length": -1,
    "batch_size": 0,
    "drop_last": 0,
    "sampler": "",
    "order": "",
    "at": START,
    FINISHED: 0,
    "epoch": 0,
    "base_seed": -1,
    "shared_seed": -1,
    "seeds_later": 0,
    "drawn": 0,
    "low": 0,
    "missing": "",
    "checksum": 0,
    "checksums": [],  # of each rank, in a state that was merged
    "last_worker": -1,
    "sampler_epoch": -1,
    "by_worker": [],
    "generators": generators.NONE,
    "sampler_state": None,
    "sampler_iterator": None,
    "sampler_at": 0,
    "sampler_sum": -1,  # the checksum of what it had drawn then
    "sampler_ended": 0,
    "worker_states": [],
    "trouble": "",
    "live_workers": 0,  # that were found to be right, of those that there may be
}
# What each of them is; None: anything, or looked at elsewhere.
_KINDS: dict[str, Any] = {
    **{key: None if value is None else type(value) for key, value in UNSET.items()},
    "generators": Mapping,
    "shmloader": None,
    FINISHED: None,
}
# Where a worker is that has just begun.
_NOWHERE: dict[str, Any] = {
    "is_begun": False,
    "snapshot": None,
    "random": None,
    "as_seeded": False,
    "attempts": 0,
    "epoch": 0,
    "has_ended": False,
    "dataset": None,
    "iterator": None,
    "begun": None,
}

# Keys that the first states did not have.
_LATER = (FINISHED, "checksums", "sampler_ended", "sampler_sum", "order", "live_workers")
_MOST = 2**63 - 1


def pack_numbers(numbers: list[int], low: int, high: int) -> str:
    """Pack which numbers from `low` to `high` are in a list, one bit each."""
    bits = bytearray((high - low + 7) // 8)
    for number in numbers:
        bits[(number - low) >> 3] |= 1 << ((number - low) & 7)
    return binascii.b2a_base64(bits, newline=False).decode()


def _unpack_numbers(packed: str, low: int, high: int) -> list[int]:
    bits = binascii.a2b_base64(packed)
    if packed and len(bits) != (high - low + 7) // 8:
        raise ValueError(f"{len(bits)} bytes for the batches from {low} to {high}")
    return [low + at for at in range(len(bits) * 8) if bits[at >> 3] >> (at & 7) & 1]


def is_lost(published: bytes | None, begun: bytes | None, is_iterable: bool) -> bool:
    """Returns True if nothing leads to where a worker was; the arguments are `pack_worker`'s."""
    before = begun if is_iterable or published is None else None
    if LOST in (published, before) or any(map(snapshot.is_lost, filter(None, (published, before)))):
        return True
    # In its first epoch an iterable dataset gets there by fetching again.
    return before is not None and snapshot.lacks_state(published or before)


def pack_worker(published: bytes | None, begun: bytes | None, is_iterable: bool) -> Any:
    """
    Describe where a worker was; None if it was where any worker begins, or nothing leads there.

    Args:
        published: The snapshot that came with the last of its batches that was delivered in the
            epoch; None if there was none.
        begun: The one with which its epoch began; None in its first one.
    """
    latest = begun if published is None else published
    if latest is None or is_lost(published, begun, is_iterable):
        return None
    described = {**_NOWHERE, "is_begun": published is None}
    if snapshot.is_opaque(latest):
        described["snapshot"] = latest
    else:
        position = snapshot.position_of(latest)
        described |= {name: getattr(position, name) for name in _OF_POSITION}
        if published is None:
            described["attempts"] = 0  # how often it was asked after its end: that is chance
        joined = snapshot.random_part(latest)
        is_as_seeded = joined == snapshot.AS_SEEDED
        described |= {"as_seeded": is_as_seeded, "random": None if is_as_seeded else joined}
    if is_iterable and published is not None and begun is not None:
        described["begun"] = snapshot.random_part(begun)
    return described


def pack_here(dataset: Any, iterator: Any, has_ended: bool) -> dict[str, Any]:
    """Describe where the dataset of an iterator without workers is."""
    return {**_NOWHERE, "has_ended": has_ended, "dataset": dataset, "iterator": iterator}


def _unpack_worker(described: Any, index: Any) -> Past:
    if described is None:
        return Past()
    latest = described["snapshot"]
    if latest is None:
        known = {name: described[name] for name in _OF_POSITION}
        joined = snapshot.AS_SEEDED if described["as_seeded"] else described["random"]
        latest = snapshot.make(Position(has_begun=True, index=index, **known), joined)
    snapshot.position_of(latest)  # or it is damaged
    begun = described["begun"]
    if begun is not None:
        begun = snapshot.make(Position(has_begun=True), begun)
    return Past(begun=latest) if described["is_begun"] else Past(begun=begun, latest=latest)


@dataclass(frozen=True)
class State:
    """
    A state that was read: what `Record.state_dict` wrote, checked and unpacked.

    Attributes:
        at: Which moment it is of: START, EPOCH or END.
        is_finished: The epoch was over, so that the next one comes.
        is_late: It was taken before the training's last step, and saved after it.
        missing: Numbers of batches that were drawn and not delivered.
        generators: By name, what was noted.
        raw: The dictionary itself.
    """

    raw: dict[str, Any]
    at: str
    is_finished: bool
    is_late: bool
    missing: list[int]
    generators: dict[str, torch.Tensor | None] = field(repr=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self.raw[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def is_merged(self) -> bool:
        """True if it is that of all ranks of a run, whose number may be another one here."""
        return bool(self.raw["checksums"])

    @property
    def has_sampler(self) -> bool:
        """True if the sampler, or its iterator, told its own state."""
        return self.raw["sampler_state"] is not None or self.raw["sampler_iterator"] is not None

    def worker(self, number: int, index: Any) -> Past:
        """Where a worker was; index: what an iterable dataset is asked for."""
        described = self.raw["worker_states"]
        try:
            return _unpack_worker(described[number] if number < len(described) else None, index)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"{_DAMAGED}: worker {number}: {error!r}") from error


_DAMAGED = "this state of a loader is damaged"
# In version 1 the order that ranks divide was a part of what the sampler is called.
_DIVIDED = re.compile(r"BatchSampler of DistributedSampler\(\d+ ranks, (.+)\)")


def read(state: Any) -> State:
    """Read a state."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a loader's state is a dict, but got {type(state).__name__}")
    version = state.get("shmloader")
    if type(version) is not int:
        keys = ", ".join(map(str, list(state)[:6]))
        raise ValueError(
            f"no loader of shmloader has saved this state: it has the keys {keys}. A state of "
            "another loader, such as torchdata's, cannot be loaded"
        )
    if version > VERSION:
        raise ValueError(
            f"this state has version {version}, and this shmloader reads versions up to {VERSION}: "
            "load it with the shmloader that saved it, or a newer one"
        )
    lost = [key for key in UNSET if key not in state and key not in _LATER]
    if lost:
        raise ValueError(f"{_DAMAGED}: it has no {', no '.join(lost)}")
    try:
        return _read({**UNSET, **(_of_version_1(state) if version == 1 else state)})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{_DAMAGED}: {error}") from error


def _of_version_1(state: Mapping[str, Any]) -> dict[str, Any]:
    """
    What a state of version 1 says as one of now.

    In that version an epoch was over with its last batch. Only one that notes that the sampler was
    not at its end yet is known to be from the loop's body; after any other the next epoch comes.
    """
    raw = {key: state[key] for key in UNSET if key in state} | {"shmloader": VERSION}
    if divided := _DIVIDED.fullmatch(state["sampler"]):
        raw["order"] = divided[1]
    if state.get("begun"):
        raw |= {"at": EPOCH, FINISHED: 0, "generators": state["begun"]}
    return raw


def _read(raw: dict[str, Any]) -> State:
    for key, kind in _KINDS.items():
        if kind is not None and not isinstance(raw[key], kind):
            raise TypeError(f"{key} is {raw[key]!r}")
    _check_ranges(raw)
    checksums = raw["checksums"]
    if checksums and (len(checksums) != raw["ranks"] or {*map(type, checksums)} != {int}):
        raise ValueError(f"checksums of {raw['ranks']} ranks are {checksums!r}")
    if raw["at"] not in (START, EPOCH, END) or not 0 <= raw["low"] <= raw["drawn"]:
        raise ValueError(f"it is of {raw['at']!r} with {raw['low']} of {raw['drawn']} batches")
    return State(
        raw=raw,
        at=raw["at"],
        is_finished=raw["at"] == END or bool(raw[FINISHED]),
        is_late=raw[FINISHED] is True,
        missing=_unpack_numbers(raw["missing"], raw["low"], raw["drawn"]),
        generators=_generators({**generators.NONE, **raw["generators"]}),
    )


def _check_ranges(raw: dict[str, Any]) -> None:
    """Refuse numbers that no loader has, where they are named."""
    # A merge may be of states that were not begun, and said to be of a finished epoch.
    is_begun = raw["at"] != START and not raw["checksums"]
    for key in (key for key, kind in _KINDS.items() if kind is int):
        least = 0 if key in ("epoch", "base_seed") and is_begun else -1
        if not least <= raw[key] <= _MOST:
            raise ValueError(f"{key} is {raw[key]}, and should be from {least} to {_MOST}")
    for count in raw["by_worker"]:
        if type(count) is not int or not 0 <= count <= _MOST:
            raise ValueError(f"by_worker is {raw['by_worker']!r}, and should be counts of batches")


def _generators(noted: Mapping[str, str]) -> dict[str, torch.Tensor | None]:
    return {name: generators.read(name, noted[name]) for name in generators.NONE}
