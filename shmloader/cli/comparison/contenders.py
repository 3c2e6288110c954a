"""The two loaders that are compared, and the check that their batches are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch.utils.data

import shmloader
from shmloader.cli.command import CommandError


class Contender(NamedTuple):
    """A name for tables and pictures, and a DataLoader class."""

    name: str
    loader_class: type[torch.utils.data.DataLoader[Any]]


CONTENDERS = (
    Contender("torch", torch.utils.data.DataLoader),
    Contender("shmloader", shmloader.DataLoader),
)


def check_same_batches(what: str, expected: Sequence[str], actual: Sequence[str]) -> None:
    """
    Compare the digests of two deliveries, in order.

    Args:
        what: Which delivery this is, for the message.
        expected: Digests of the first contender's batches.
        actual: Digests of the second contender's batches.

    Raises:
        CommandError: Their numbers differ, or a batch does.
    """
    names = [contender.name for contender in CONTENDERS]
    if len(expected) != len(actual):
        raise CommandError(
            f"{what}: {names[0]} delivered {len(expected)} batches, {names[1]} {len(actual)}"
        )
    for number, pair in enumerate(zip(expected, actual, strict=True), start=1):
        if pair[0] != pair[1]:
            raise CommandError(
                f"{what}: batch {number} of {len(expected)} differs: "
                f"SHA-256 {pair[0][:16]} from {names[0]}, {pair[1][:16]} from {names[1]}"
            )
