"""
Another system, faked in this process: a program imports this before shmloader.

torch was made for the system that it runs on, so it is imported first.
"""

import builtins
import multiprocessing.connection
import os
import sys

import torch.utils.data

# What Python has on Linux alone, and this package or what it calls may ask for.
_LACKS = (
    *("eventfd", "memfd_create", "pidfd_open", "posix_fallocate", "splice"),
    *("sched_getaffinity", "sched_setaffinity", "sched_getscheduler"),
)
# And what other systems have, but not Windows.
_WINDOWS_LACKS = ("O_CLOEXEC", "fork", "getpriority", "register_at_fork", "setpriority")
_WINDOWS_MODULES = ("fcntl", "posix_ipc", "resource", "termios")
_open, _os_open, _listdir = builtins.open, os.open, os.listdir


def pretend(platform: str = "darwin") -> None:
    """Be that system from now on: without /proc, without Linux's calls, without the core."""
    assert torch.utils.data.DataLoader
    assert multiprocessing.connection.Pipe
    assert "shmloader" not in sys.modules, "it looks when it is imported"
    sys.platform = platform
    for name in (*_LACKS, *(_WINDOWS_LACKS if platform == "win32" else ())):
        if hasattr(os, name):
            delattr(os, name)
    builtins.open, os.open, os.listdir = _without(_open), _without(_os_open), _without(_listdir)
    for name in ("shmloader.core._core", *(_WINDOWS_MODULES if platform == "win32" else ())):
        sys.modules[name] = None  # an import of it fails


def _without(call):
    def found(path=".", *arguments, **options):
        if isinstance(path, str) and path.startswith(("/proc", "/sys/fs")):
            raise FileNotFoundError(path)
        return call(path, *arguments, **options)

    return found
