"""
A run in a process of its own that this one forks and, if asked, whose memory it looks at.

A fork takes a hundredth of the time of a new interpreter that imports torch. This process has
imported all that a row needs. What both share after the fork counts once, because this process is
counted too, and in every look alike.
"""

import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from bench import usage

_LONGEST_S = 120  # a run that says nothing for longer has failed
_PAUSE_S = 0.005  # between two looks at a run that goes on: samples live for milliseconds
_FORK = multiprocessing.get_context("fork")

DURING = "during"  # memory is looked at all the time, from this word until another one

Look = Callable[[str], None]


def run(work: Callable[[Look], dict]) -> dict:
    """
    Fork a process for `work` and return what it returns, or its mistake.

    Args:
        work: Gets a function that stops it while this process looks at memory.

    Returns:
        Its record and, for each word that it looked with, the highest MB of the process and those
        below it: their own and shared memory ("mb"), and the sum of what ps shows ("rss_mb").
    """
    gc.collect()
    gc.freeze()  # a collection in the child would copy every page
    here, there = _FORK.Pipe()
    process = _FORK.Process(target=_work, args=(work, there))
    process.start()
    there.close()
    try:
        return _watch(process.pid, here)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its session, with the workers
        process.kill()
        process.join()


def _work(work: Callable[[Look], dict], pipe: Connection) -> None:
    """Do the work in the child and leave without what the parent would do at its end."""
    os.setsid()  # so that its workers can be found and ended when it is gone

    def look(when: str) -> None:
        pipe.send(when)
        pipe.recv()

    try:
        pipe.send(work(look))
    except BaseException:  # whatever it is, it belongs into the record
        pipe.send({"mistake": traceback.format_exc(limit=-3)})
    finally:
        sys.stdout.flush()
        os._exit(0)


def _watch(pid: int, pipe: Connection) -> dict:
    """Look at the run's memory until its record comes, and answer its words."""
    peaks: dict[str, dict[str, float]] = {}
    word, silent_since = "", time.monotonic()
    while True:
        said = _next_word(pipe, _PAUSE_S if word == DURING else _LONGEST_S)
        if isinstance(said, dict):
            return {**said, **peaks}
        if said is None and time.monotonic() - silent_since > _LONGEST_S:
            return {"mistake": "it hangs", **peaks}
        if said is not None:
            word, silent_since = said, time.monotonic()
        found, highest = _memory(pid), peaks.get(word, {})
        peaks[word] = {name: max(value, highest.get(name, 0.0)) for name, value in found.items()}
        if said is not None:
            pipe.send(None)


def _next_word(pipe: Connection, timeout_s: float) -> str | dict | None:
    """Return a run's word or record; None: it said nothing for so long."""
    try:
        return pipe.recv() if pipe.poll(timeout_s) else None
    except EOFError:
        return {"mistake": "the process was killed"}


def _memory(pid: int) -> dict[str, float]:
    """Weigh a run: what it shares with this process counts once, whoever holds it."""
    pids = [pid, *usage.descendants(pid)]
    accounts = [usage.memory_bytes(each) for each in [*pids, os.getpid()]]
    own = sum(account["Pss_Anon"] for account in accounts)
    resident = sum(account["Rss"] for account in accounts[:-1])
    return {"mb": (usage.shared_bytes(pids) + own) / 1e6, "rss_mb": resident / 1e6}
