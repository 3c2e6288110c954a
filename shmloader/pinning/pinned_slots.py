"""
Pinned batches, which torch's `pin_memory=True` asks for: in their slots, or copied out of them.

From a MiB on a batch is its slot, page-locked: torch finds its tensors pinned already, and a copy
to the device reads what the worker wrote. What cannot stay is copied, once, into pinned memory of
torch's own, without the interpreter's lock. What a batch's structure becomes, which methods of
users' classes are called, and what goes wrong, is torch's own function in both cases.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from shmloader import log
from shmloader.core import copy_tensor, open_driver
from shmloader.errors import warn
from shmloader.memory.segment import is_guarded
from shmloader.transport.delivery import ordinary_tensors

VARIABLE = "SHMLOADER_PIN"
_DRIVER = b"libcuda.so.1"


def is_to_lock() -> bool:
    """Returns True unless the environment says that batches are to be copied."""
    value = os.environ.get(VARIABLE) or "slots"
    if value not in ("slots", "copy"):
        raise ValueError(f"{VARIABLE}={value}: choose copy, or unset it")
    return value == "slots" and not is_guarded()


def can_pin() -> bool:
    """Returns True if there is an accelerator, without which torch pins nothing; warns if not."""
    is_there = torch.accelerator.is_available()
    if not is_there:
        warn("pin_memory=True has no effect, because torch finds no accelerator here")
    return is_there


def may_lock() -> bool:
    """
    Returns True if slots can be page-locked in this process; CUDA is initialised then.

    So it is asked when the workers have started, as torch's thread for pinning does: a worker that
    is forked before may still use CUDA.
    """
    if torch.version.hip or not torch.cuda.is_available():
        return False
    try:
        torch.cuda.init()
    except RuntimeError as error:  # as in a child of a process that uses CUDA: torch will say so
        log.tell("slots cannot be page-locked: %s", error)
        return False
    error_number = open_driver(_DRIVER)
    if error_number != 0:
        log.tell("slots cannot be page-locked: the driver answers %d", error_number)
    return error_number == 0


def _empty(like: torch.Tensor) -> torch.Tensor:
    shape, strides = like.shape, like.stride()
    # The device is said, because the default one may be another.
    return torch.empty_strided(shape, strides, dtype=like.dtype, device="cpu", pin_memory=True)


def pin(leaf: torch.Tensor, empty: Callable[[torch.Tensor], torch.Tensor] = _empty) -> Any:
    """
    Copy a tensor into pinned memory.

    Args:
        empty: Makes the memory.

    Returns:
        The copy; or the leaf itself if torch must make it, or say why it cannot be made.
    """
    try:
        with ordinary_tensors():
            pinned = empty(leaf)
    except Exception:
        return leaf
    return pinned if copy_tensor(pinned, leaf) else leaf


class EachApart(TorchFunctionMode):
    """
    Has each call of `pin_memory()` make memory of its own, as where nothing is pinned already.

    A tensor that is pinned as it lies stays there the first time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._met: dict[int, torch.Tensor] | None = {}  # by id, which they keep; None: it is over

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch."""
        made = function(*args, **(kwargs or {}))
        if self._met is None or function is not torch.Tensor.pin_memory or made is not args[0]:
            return made
        if id(made) not in self._met:
            self._met[id(made)] = made
            return made
        apart = pin(made)
        return made.clone().pin_memory() if apart is made else apart

    def end(self) -> None:
        """Change nothing any more, should an interrupt leave the mode on."""
        self._met = None
