"""Fork a nursery: into a process like itself, or into a child of multiprocessing."""

import os
import warnings
from collections.abc import Callable
from multiprocessing import context, util
from typing import Any, NoReturn


def fork() -> int:
    """Fork as os.fork() does, without a word about threads."""
    with warnings.catch_warnings():
        # Of forks beside a thread, since Python 3.12: threads of ours run no Python.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def fork_into(target: Callable[[], None], name: str, sentinel: int) -> int:
    """
    Fork a daemon of multiprocessing, which nothing but its pid stands for in this process.

    Args:
        target: Called in the child, which ends afterwards.
        name: Of the child.
        sentinel: A descriptor that becomes readable when the child has no parent any more.
    """
    child: Any = context.ForkProcess(target=target, name=name, daemon=True)
    util._flush_std_streams()  # type: ignore[attr-defined]
    pid = fork()
    if pid == 0:
        _be(child, sentinel)
    return pid


def _be(child: Any, sentinel: int) -> NoReturn:
    code = 1
    try:
        code = child._bootstrap(parent_sentinel=sentinel)
    finally:
        os._exit(code)
