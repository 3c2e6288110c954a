"""
Slots that a child of the trainer may still read.

When user code forks while batches are held, the child has the same views, and nobody can ask it
when it drops them. The slots leased at that moment stay out of use until the child is gone. A pipe
tells: the child inherits its write end, and only the end of the last holder closes it.
"""

import contextlib
import os
import select
import threading
import weakref

_ledgers: weakref.WeakSet = weakref.WeakSet()
_own_fork = threading.local()
_children: dict[int, list] = {}  # read end -> [(weak ledger, marks)]


def watch(ledger):
    """Keep what is leased from this ledger safe from forks of user code."""
    _ledgers.add(ledger)


class _Pending(threading.local):
    # (read end, write end, marks) between the two hooks of one fork; threads may fork at a time.
    value: tuple | None = None


_pending = _Pending()


class ours:
    """A context in which forks are our own workers', which read no batch of the trainer."""

    def __enter__(self):
        _own_fork.on = True

    def __exit__(self, *_):
        _own_fork.on = False


def _before():
    _pending.value = None
    if getattr(_own_fork, "on", False):
        return
    poll()
    marked = [(weakref.ref(ledger), ledger.mark_fork()) for ledger in _ledgers]
    marked = [(ledger, marks) for ledger, marks in marked if marks is not None]
    if marked:
        # Without a pipe nobody tells when the child is gone: those slots stay out of use.
        with contextlib.suppress(OSError):
            _pending.value = (*os.pipe(), marked)


def _after_in_parent():
    if _pending.value is not None:
        read_end, write_end, marked = _pending.value
        os.close(write_end)
        _children[read_end] = marked
        _pending.value = None


def _after_in_child():
    for read_end in _children:
        os.close(read_end)
    _children.clear()
    if _pending.value is not None:
        # The write end stays open as long as this process, or one that it forks, lives.
        os.close(_pending.value[0])
        _pending.value = None


def poll():
    """Free the slots whose children are gone."""
    if not _children:
        return
    ends = select.poll()
    for read_end in _children:
        ends.register(read_end, select.POLLHUP)
    for read_end, _ in ends.poll(0):
        os.close(read_end)
        for reference, marks in _children.pop(read_end):
            ledger = reference()
            if ledger is not None:
                ledger.unmark_fork(marks)


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
