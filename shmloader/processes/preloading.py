"""
The first code of a preloaded server: it imports what workers need, and says what failed.

It was started with a sys.path that is the trainer's, so that the same modules are found.
"""

import contextlib
import fcntl
import gc
import importlib
import marshal
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from multiprocessing import process, spawn, util
from typing import Any

from shmloader.processes import victims
from shmloader.processes.channel import Channel
from shmloader.processes.proc import names_of_other_threads

_LOOK_AGAIN_S = 0.2


def run(given: dict[str, Any]) -> None:
    """Import, and be a server until the trainer is gone; `given` is what `server` says."""
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    # Not under a number of the standard files, if they were closed in the trainer.
    channel = Channel.of(fcntl.fcntl(given["channel"], fcntl.F_DUPFD_CLOEXEC, 3))
    os.close(given["channel"])
    victims.volunteer(victims.own_score())
    with _EndsWithTrainer(given["trainer"][0]):
        for name in given["modules"]:
            _say(channel, importing=name)
            try:
                _import(name, given["main"])
            except BaseException as error:
                _say(channel, failed=name, error=f"{type(error).__name__}: {error}"[:2000])
                return
    util._flush_std_streams()  # type: ignore[attr-defined]  # what modules printed
    unfit = _say_why_unfit()
    if unfit:
        _say(channel, unfit=unfit[:2000])
        return
    from shmloader.processes import preloaded

    _leave_standard_files()
    gc.collect()
    gc.freeze()  # what is never looked at stays shared with the workers
    _say(channel, ready=True)
    preloaded.serve(given["trainer"], channel)


def _import(name: str, main: dict[str, Any]) -> None:
    if name != "__main__":
        importlib.import_module(name)
        return
    # As in a spawned worker, in which a script without a guard may start no process.
    process.current_process()._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(main)
    finally:
        del process.current_process()._inheriting  # type: ignore[attr-defined]


def _say(channel: Channel, **news: Any) -> None:
    with contextlib.suppress(OSError):  # of its end the server learns where it takes orders
        channel.send(marshal.dumps(news))


class _EndsWithTrainer:
    """Ends this process with the trainer while it imports, when it cannot look by itself."""

    def __init__(self, trainer: int) -> None:
        self._trainer = trainer
        self._stops, self._stop = os.pipe()
        # Before a module is imported that puts another in its place.
        self._look = select.poll()
        self._look.register(self._stops)
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        os.close(self._stop)
        self._thread.join()
        os.close(self._stops)

    def _watch(self) -> None:
        # Not by a pidfd, which a kernel may refuse: this process is the trainer's child.
        while os.getppid() == self._trainer:
            if self._look.poll(1000 * _LOOK_AGAIN_S):
                return
        os._exit(1)


def _say_why_unfit() -> str:
    """Say what of the modules' doing a forked worker could not have; "": nothing."""
    is_poisoned = _accelerator_is_poisoned()
    if threads := ", ".join(names_of_other_threads()):
        return f"starts threads ({threads}) that a forked worker would lack"
    if files := ", ".join(_files()):
        return f"leaves files open ({files}) whose file position all forked workers would share"
    return "uses an accelerator, which forked workers could not use then" if is_poisoned else ""


def _accelerator_is_poisoned() -> bool:
    """
    Returns True if torch refuses an accelerator in a child of this process.

    The child has another use: threads of OpenBLAS, which `import numpy` starts, end by themselves
    at the first fork.
    """
    answer, told = os.pipe()
    child = os.fork()
    if child == 0:
        torch = sys.modules.get("torch")
        kinds = [getattr(torch, each, None) for each in ("cuda", "xpu")]
        if any(getattr(kind, "_is_in_bad_fork", bool)() for kind in kinds):
            os.write(told, b"1")
        os._exit(0)
    os.close(told)
    with open(answer, "rb") as file:
        is_poisoned = bool(file.read())
    with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored the kernel reaps it
        os.wait4(child, 0)
    return is_poisoned


def _files() -> Iterator[str]:
    """Yield the regular files, apart from standard ones, that are open for reading."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{number}")
            is_read = fcntl.fcntl(int(number), fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
            is_file = stat.S_ISREG(os.fstat(int(number)).st_mode) and not name.startswith("/memfd:")
            # importlib.metadata keeps archives open that modules are found in.
            if is_read and is_file and int(number) > 2 and name not in sys.path:
                yield name


def _leave_standard_files() -> None:
    """Close the trainer's standard files: a reader of its output may wait for their end."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number, inheritable=True)
    if null > 2:
        os.close(null)
    os.chdir("/")
