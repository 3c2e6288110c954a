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
import socket
import threading
from typing import Any

_LOOK_AGAIN_S = 0.2


def run(given: dict[str, Any]) -> None:
    """
    Import, and be a server until the trainer is gone.

    Args:
        given: What `server` says: the descriptor of the channel, the trainer and the modules.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    # Not under a number of the standard files, if they were closed in the trainer.
    channel = socket.socket(fileno=fcntl.fcntl(given["channel"], fcntl.F_DUPFD_CLOEXEC, 3))
    os.close(given["channel"])
    with _EndsWithTrainer(given["trainer"][0]):
        for name in given["modules"]:
            _say(channel, importing=name)
            try:
                importlib.import_module(name)
            except BaseException as error:
                _say(channel, failed=name, error=f"{type(error).__name__}: {error}"[:2000])
                return
    threads = _threads_that_stay()
    if threads:
        _say(channel, threads=threads)
        return
    from shmloader.processes import preloaded

    _leave_standard_files()
    gc.collect()
    gc.freeze()  # what is never looked at stays shared with the workers
    _say(channel, ready=True)
    preloaded.serve(given["trainer"], channel)


def _say(channel: socket.socket, **news: Any) -> None:
    with contextlib.suppress(OSError):  # of its end the server learns where it takes orders
        channel.send(marshal.dumps(news))


class _EndsWithTrainer:
    """Ends this process with the trainer while it imports, when it cannot look by itself."""

    def __init__(self, trainer: int) -> None:
        self._trainer = trainer
        self._stops, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        os.close(self._stop)
        self._thread.join()
        os.close(self._stops)

    def _watch(self) -> None:
        look = select.poll()
        look.register(self._stops)
        # Not by a pidfd, which a kernel may refuse: this process is the trainer's child.
        while os.getppid() == self._trainer:
            if look.poll(1000 * _LOOK_AGAIN_S):
                return
        os._exit(1)


def _threads_that_stay() -> list[str]:
    """
    Name the threads that a child would lack.

    Those of OpenBLAS, which `import numpy` starts, end by themselves at the first fork.
    """
    child = os.fork()
    if child == 0:
        os._exit(0)
    with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored the kernel reaps it
        os.waitpid(child, 0)
    names = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            if int(thread) != os.getpid():
                with open(f"/proc/self/task/{thread}/comm", encoding="utf-8") as file:
                    names.append(file.read().strip())
    return names


def _leave_standard_files() -> None:
    """Close the trainer's standard files: a reader of its output may wait for their end."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number, inheritable=True)
    if null > 2:
        os.close(null)
    os.chdir("/")
