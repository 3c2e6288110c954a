"""
Graphs that are being captured, of which the core has to know: csrc/driver.c says why.

torch begins each capture of its own by a method of a graph's class, `torch.cuda.graph`,
`make_graphed_callables` and torch.compile included. The method is wrapped, once for the process.
"""

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from shmloader.core import Capture, driver_works, is_capturing, relax_captures

_MARK = "_shmloader_announces"

# A graph may go without the end of its capture.
_under_way: "weakref.WeakKeyDictionary[Any, Capture]" = weakref.WeakKeyDictionary()


def announce() -> None:
    """Have all captures of torch announced from now on."""
    for kind in _kinds_of_graphs():
        if not getattr(kind.capture_begin, _MARK, False):
            # In this order: an interrupt must leave no begin without its end.
            kind.capture_end = _ended(kind.capture_end)
            kind.capture_begin = _begun(kind.capture_begin)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Have no capture mind what is done inside, as taking pinned memory, which next() may do."""
    if not (is_capturing() and driver_works()):
        yield
        return
    mode = relax_captures()
    try:
        yield
    finally:
        relax_captures(mode)


def _kinds_of_graphs() -> list[Any]:
    kinds = [torch.cuda.CUDAGraph, getattr(torch.accelerator, "Graph", None)]
    return [kind for kind in kinds if hasattr(kind, "capture_begin")]


def _begun(method: Any) -> Any:
    @functools.wraps(method)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        _under_way[self] = Capture()
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            _under_way.pop(self, None)
            raise

    setattr(capture_begin, _MARK, True)
    return capture_begin


def _ended(method: Any) -> Any:
    @functools.wraps(method)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        finally:
            _under_way.pop(self, None)

    return capture_end
