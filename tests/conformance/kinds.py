"""
Whatever hands out batches or results: one line a kind.

A case of this folder is a test with a parameter `kind`; it runs for every line. What a kind cannot
do, or does otherwise, its line says with the reason: `differs` has it by the name of the case.
`python -m tests.conformance.page` prints kinds and cases as the table of docs/proofs.md.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch.utils.data

from shmloader import Pool
from tests.conformance.sources import (
    FromCache,
    FromExecutor,
    FromInstalled,
    FromLoader,
    FromPublisher,
    FromRecords,
    Source,
    from_pinned,
    over_a_gpu,
    wrapped,
)


@dataclass(frozen=True)
class Kind:
    """
    A kind of what hands out batches or results.

    Attributes:
        open: Opens one; takes options of the loader or the pool behind it, if there is one.
        standard: Opens what it must be like.
        differs: By a case's name, why it does not hold for this kind.
        refuses: By a leaf's name, the error that comes in its place, as with torch.
        unwraps: The names of leaves whose `pin_memory()` gives a plain tensor, with torch too.
        is_slow: True if its workers import torch, so that only --rest runs it.
    """

    name: str
    open: Callable[..., Source]
    standard: Callable[[], Source]
    differs: dict[str, str] = field(default_factory=dict)
    refuses: dict[str, type[Exception]] = field(default_factory=dict)
    unwraps: tuple[str, ...] = ()
    is_slow: bool = False


def torchs() -> Source:
    return FromLoader(torch.utils.data.DataLoader, multiprocessing_context="fork")


def executor() -> Source:
    # A forked child that copies with several threads waits for those that it lacks.
    alone: Any = (torch.set_num_threads, (1,))
    return FromExecutor(lambda: ProcessPoolExecutor(1, multiprocessing.get_context("fork"), *alone))


def submit(**options: Any) -> Source:
    return FromExecutor(functools.partial(Pool, 1, "fork", **options))


def loader(context: str) -> Callable[..., Source]:
    return functools.partial(FromLoader, multiprocessing_context=context)


def pool(**of_map: Any) -> Callable[..., Source]:
    return lambda **options: FromExecutor(functools.partial(Pool, 1, "fork", **options), of_map)


# What a kind cannot do, or does otherwise, and why.
_OWN = "values are made by the caller, in its own process"
IN_PROCESS = {
    "a_child_that_comes_back_is_no_worker": _OWN,
    "a_death_is_an_error": _OWN,
    "a_death_is_healed": _OWN,
    "a_signal_that_the_trainer_sees_to_is_left_to_it": _OWN,
}
_SHARING = (
    "memory_is_shared_as_the_standard_shares_it",
    "objects_refer_as_the_standard_has_them",
    "every_pair_of_leaves_arrives",
)
PINNED = dict.fromkeys(_SHARING, "torch, too, pins each tensor by itself and makes sequences anew")
NO_CYCLE: dict[str, type[Exception]] = {"dict that contains itself": RecursionError}
IN_PLACE: dict[str, Any] = {"refuses": NO_CYCLE, "unwraps": ("torchvision tv_tensors.Image",)}
COPIED = dict.fromkeys(_SHARING, "each tensor is copied, as by `.to()`")

_ENDS = "an error of its loader ends a publisher"
ENDS = {"values_come_after_one_that_failed": _ENDS, "much_too_deep_is_an_error": _ENDS}

KINDS = [
    Kind("fork", loader("fork"), torchs),
    Kind("fork, copied out", functools.partial(loader("fork"), slots=1), torchs),
    Kind("forkserver", loader("forkserver"), torchs, is_slow=True),
    Kind("spawn", loader("spawn"), torchs, is_slow=True),
    Kind("pinned by a copy", from_pinned, torchs, PINNED, NO_CYCLE),
    Kind(
        "pinned in place", over_a_gpu(loader("fork"), pin_memory=True), torchs, PINNED, **IN_PLACE
    ),
    Kind("device", over_a_gpu(loader("fork"), device="cuda"), torchs, COPIED),
    Kind("wrap", functools.partial(FromLoader, wrapped, multiprocessing_context="fork"), torchs),
    Kind("install", functools.partial(FromInstalled, multiprocessing_context="fork"), torchs),
    Kind("submit", submit, executor),
    Kind("map", pool(), executor),
    Kind("lazy map", pool(buffersize=2), executor),
    Kind("map, pinned", over_a_gpu(pool(), pin_memory=True), executor, PINNED, **IN_PLACE),
    Kind("subscriber", FromPublisher, torchs, ENDS),
    Kind(
        "subscriber, pinned",
        over_a_gpu(FromPublisher, pin_memory=True),
        torchs,
        {**ENDS, **PINNED},
        **IN_PLACE,
    ),
    Kind("SharedList", FromRecords, torchs, IN_PROCESS),
    Kind("cached", FromCache, torchs, IN_PROCESS),
]
