"""
Why a thread should not lead: what may interrupt it between two lines, and modes of torch.

A thread that leads cannot be left in the middle of a step, so what interrupts it there could wait
for ever. Handlers of signals run in the main thread alone; with one of user code that thread does
not lead. Finalizers run wherever memory is taken; those that would wait are refused.
"""

import signal
import threading

# `signal.getsignal` makes an enum's member of each answer, which takes 15 times as long.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch

_NUMBERS = tuple(map(int, signal.valid_signals()))
_TORCHS = "torch.utils.data._utils.signal_handling"  # looks for dead workers, and asks no pool


def may_be_handled() -> bool:
    """Returns True in the main thread, if user code has a handler of signals."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = filter(callable, map(getsignal, _NUMBERS))
    return any(map(_is_of_user_code, handlers))


def _is_of_user_code(handler: Callable[..., Any]) -> bool:
    return (
        handler is not signal.default_int_handler
        and getattr(handler, "__module__", None) != _TORCHS
    )


def is_in_mode() -> bool:
    """Returns True if torch makes other tensors in this thread, as within `torch.device()`."""
    return (
        torch.is_inference_mode_enabled()
        or torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
    )


class Waited(Future[Any]):
    """A future of which a wait that could never end is an error."""

    def __init__(self, check: Callable[[], None]) -> None:
        """Be waited for; check: Raises if this thread must not wait."""
        super().__init__()
        self._check = check

    def result(self, timeout: float | None = None) -> Any:
        """Return the result, as `Future.result`."""
        if not self.done():
            self._check()
        try:
            return super().result(timeout)
        finally:
            del self  # as `Future.result`: the error's traceback holds this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, as `Future.exception`."""
        if not self.done():
            self._check()
        return super().exception(timeout)
