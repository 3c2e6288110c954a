"""
Slots that a forked child of the trainer may still read.

When user code forks while batches are held, the child has the same views, and the trainer cannot
see when the child drops them. The slots leased at that moment stay out of use until the child is
gone. A pipe tells: the child inherits its write end, and EOF comes when the last copy is closed.
"""

import contextlib
import os
import select
import threading
import weakref
from types import TracebackType
from typing import NamedTuple

from shmloader.core import Ledger


class _Mark(NamedTuple):
    """The slots of one ledger that a child may read."""

    ledger: weakref.ref[Ledger]
    slots: bytes


_ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()
_own_fork = threading.local()
_children: dict[int, list[_Mark]] = {}  # by the read end of the child's pipe


def watch(ledger: Ledger) -> None:
    """Keep the leased slots of this ledger safe from forks of user code."""
    _ledgers.add(ledger)


class _Pending(threading.local):
    # (read end, write end, marks) between the two hooks of one fork; several threads may fork.
    value: tuple[int, int, list[_Mark]] | None = None


_pending = _Pending()


class ours:
    """A context in which forks are our own workers', which read no batch of the trainer."""

    def __enter__(self) -> None:
        _own_fork.on = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _own_fork.on = False


def _before() -> None:
    _pending.value = None
    if getattr(_own_fork, "on", False):
        return
    poll()
    marks = [(weakref.ref(ledger), ledger.mark_fork()) for ledger in _ledgers]
    marked = [_Mark(ledger, slots) for ledger, slots in marks if slots is not None]
    if marked:
        # Without a pipe the child's end would not be seen: those slots stay out of use.
        with contextlib.suppress(OSError):
            _pending.value = (*os.pipe(), marked)


def _after_in_parent() -> None:
    if _pending.value is not None:
        read_end, write_end, marked = _pending.value
        os.close(write_end)
        _children[read_end] = marked
        _pending.value = None


def _after_in_child() -> None:
    for read_end in _children:
        os.close(read_end)
    _children.clear()
    if _pending.value is not None:
        # The write end stays open as long as this process, or one that it forks, lives.
        os.close(_pending.value[0])
        _pending.value = None


def poll() -> None:
    """Free the slots whose children are gone."""
    if not _children:
        return
    ends = select.poll()
    for read_end in _children:
        ends.register(read_end, select.POLLHUP)
    for read_end, _ in ends.poll(0):
        os.close(read_end)
        for mark in _children.pop(read_end):
            ledger = mark.ledger()
            if ledger is not None:
                ledger.unmark_fork(mark.slots)


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
