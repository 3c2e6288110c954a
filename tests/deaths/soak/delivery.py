"""Batches of a phase as hashes, looked at again when the trainer lets go of them."""

from __future__ import annotations

import contextlib
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from shmloader.cli.comparison import digest_batch
from tests.deaths.soak.phases import Phase, draw

_STALLED_S = 60  # without a batch; longer than any number of deaths explains


class Mistake(Exception):
    """Something that must not be; the text says what and at which batch."""


def digests(phase: Phase, loader, batches: int) -> Iterator[str]:
    """
    Yield the hash of each batch, and keep as many batches as the phase says.

    Raises:
        Mistake: No batch came for a minute, or one changed while it was kept.
    """
    kept: deque = deque()
    coming = _watched(draw(loader, batches))
    for number in range(batches):
        batch = next(coming)
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


def _watched(batches: Iterable) -> Iterator:
    """Pass batches on, and raise in the trainer when the next one takes too long."""
    number = 0
    with _alarm(lambda: f"no batch {number} within {_STALLED_S} s"):
        signal.alarm(_STALLED_S)
        for batch in batches:
            signal.alarm(0)
            yield batch
            del batch
            number += 1
            signal.alarm(_STALLED_S)


@contextlib.contextmanager
def _alarm(text: Callable[[], str]) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Mistake(text())

    before, timer = signal.signal(signal.SIGALRM, ring), signal.getitimer(signal.ITIMER_REAL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def compare(expected: list[str], actual: Iterable[str]) -> None:
    """
    Compare hashes, in order, with those of the run without deaths.

    Raises:
        Mistake: One differs.
    """
    for number, (right, found) in enumerate(zip(expected, actual, strict=True)):
        if right != found:
            raise Mistake(f"batch {number} differs from the run without deaths")
