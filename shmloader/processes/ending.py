"""
Ends at which Python hears nobody: the interpreter's exit, a forked child's, an object's.

At exit multiprocessing asks its daemons to end and waits for them without a limit. Before that,
everything that was started for the iterators that are alive is ended here.
"""

import _thread
import contextlib
import multiprocessing.process
import os
import weakref
from multiprocessing.util import Finalize
from typing import Any

from shmloader.processes import starting as processes

_FIRST = 1 << 30  # a priority among multiprocessing's finalizers


class _Exit:
    def __init__(self):
        self.has_begun = False
        self._owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._pid = None

    def _living(self):
        # Of references: no other thread can come between.
        living = [reference() for reference in self._owners.valuerefs()]
        return [owner for owner in living if owner is not None]

    def watch(self, owner):
        self._owners[id(owner)] = owner
        if self._pid != os.getpid():
            self._pid = os.getpid()
            # Called in this process alone, at the end of multiprocessing's own children too.
            Finalize(None, self._begin, exitpriority=_FIRST)

    def _begin(self):
        self.has_begun = True
        owners = [owner for owner in self._living() if owner.owner_pid == self._pid]
        with contextlib.suppress(KeyboardInterrupt):  # it asks for what is happening
            for owner in owners:
                owner.unwatch_workers()
            processes.end_all([process for owner in owners for process in owner.processes()])

    def disown(self):
        children: set[Any] = getattr(multiprocessing.process, "_children", set())
        for owner in self._living():
            children.difference_update(getattr(each, "process", each) for each in owner.processes())


_exit = _Exit()
# A child that was forked by user code shall leave its parent's workers alone when it ends.
os.register_at_fork(after_in_child=_exit.disown)


def watch(owner):
    """
    End an owner's processes when the interpreter ends, if the owner is still there.

    Args:
        owner: Has `owner_pid`, the process that started them; `processes()`, which lists them, or
            what ends like one and has it as `process`; and `unwatch_workers()`, after which their
            end is no error.
    """
    _exit.watch(owner)


def has_begun():
    """Whether the interpreter ends, and the workers with it."""
    return _exit.has_begun


class InterruptLater:
    """
    Interrupts when it is dropped: as an object's last attribute, after all that its end runs.

    What drops it calls no Python, so nothing is interrupted before whoever dropped the object.
    """

    __del__ = staticmethod(_thread.interrupt_main)
