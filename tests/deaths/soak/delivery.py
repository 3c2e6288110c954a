"""Batches of a phase as hashes, looked at again when the trainer lets go of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from examples.demo.moving import digest_batch
from tests.deaths.soak.phases import Phase, draw


class Mistake(Exception):
    """Something that must not be; the text says what and at which batch."""


def digests(phase: Phase, loader, batches: int) -> Iterator[str]:
    """
    Yield the hash of each batch, and keep as many batches as the phase says.

    Raises:
        Mistake: One changed while it was kept.
    """
    kept: deque = deque()
    for number, batch in enumerate(draw(loader, batches)):
        digest = digest_batch(batch)
        if phase.window:
            kept.append((number, digest, batch))
        del batch  # or it would be kept while the next one is waited for
        if len(kept) > phase.window:
            _check_kept(*kept.popleft())
        yield digest
    while kept:
        _check_kept(*kept.popleft())


def _check_kept(number: int, digest: str, batch) -> None:
    if digest_batch(batch) != digest:
        raise Mistake(f"batch {number} changed while it was kept")


def compare(expected: list[str], actual: Iterable[str]) -> None:
    """
    Compare hashes, in order, with those of the run without deaths.

    Raises:
        Mistake: One differs.
    """
    for number, (right, found) in enumerate(zip(expected, actual, strict=True)):
        if right != found:
            raise Mistake(f"batch {number} differs from the run without deaths")
