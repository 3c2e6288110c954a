"""
What a worker that leaves runs: the functions that were registered with atexit in it.

Python runs them in interpreters that were spawned, and since 3.13 in processes that multiprocessing
has forked; before that it is done here. What was registered before the fork is the parent's: it is
neither run nor, before 3.13, let go of, which might finalize what it refers to.

All together have a second. multiprocessing's own functions come last and have more: they wait for
processes that a call has started.
"""

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from multiprocessing import util

from shmloader import core

_LIMIT_S = 1.0


def run_to_the_end(run: Callable[[], None]) -> None:
    """
    Run a forked process of multiprocessing, then the exit functions registered in it, and end.

    If it raises, the process ends as multiprocessing ends it.
    """
    atexit.register(_end)
    run()
    threading._shutdown()  # type: ignore[attr-defined]  # as at any exit, after all threads
    atexit._run_exitfuncs()


def _end() -> None:
    """End this process; called after its own exit functions, and before those of its parent."""
    try:
        util._exit_function()  # type: ignore[attr-defined]  # writes queues to their ends
        util._flush_std_streams()  # type: ignore[attr-defined]
    finally:
        os._exit(0)


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Limit the time of what is registered meanwhile, once this process leaves."""
    atexit.register(core.lift_limit)
    before = atexit._ncallbacks()
    try:
        yield
    finally:
        if atexit._ncallbacks() > before:
            atexit.register(core.limit_life, _LIMIT_S)  # the last is called first
