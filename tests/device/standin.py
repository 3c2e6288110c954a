"""An accelerator that is none: copies from slots are done when its driver says so, or fail."""

import contextlib
from typing import Any

import torch


class Never(RuntimeError):
    """What the stand-in raises for a copy that fails."""


class StandIn:
    """
    A backend of the CPU, which notes what no accelerator may be asked for.

    Copies from memory of its own are done at once: torch keeps that until they are.

    Args:
        driver: Of slots that are page-locked; None: none can be.

    Attributes:
        faults: What must not have happened, in words.
        calls: How many copies were begun.
        raises_at: The call of them that fails; None: none does.
        handed: How many batches the consumer's stream was told to wait for.
        recorded: Where the storages begin that were noted as used by that stream.
        marked: How often the consumer's stream was marked.
        followed: The marks that the stream of copies was told to wait for, each with the number of
            copies that were issued before.
    """

    device = torch.device("cpu")

    def __init__(self, driver: Any = None) -> None:
        self.driver = driver
        self.reads_slots = driver is not None
        self.own: dict[int, torch.Tensor] = {}  # storages in pinned memory
        self.faults: list[str] = []
        self.raises_at: int | None = None
        self.capturing = False
        self.is_copying = 0
        self.calls = 0
        self.handed = 0
        self.recorded: set[int] = set()
        self.marked = 0
        self.followed: list[tuple[int, int]] = []

    def pinned(self, shape, strides, dtype) -> torch.Tensor:
        made = torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
        self.own[extent_of(made)] = made
        return made

    @contextlib.contextmanager
    def copying(self):
        self.is_copying += 1
        try:
            yield
        finally:
            self.is_copying -= 1

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        assert to.stride() == source.stride(), "the backend is given equal tensors"
        if not self.is_copying:
            self.faults.append("a copy on another stream")
        self.calls += 1
        if self.calls == self.raises_at:
            raise Never("no memory on the device")
        if extent_of(source) in self.own:
            to.copy_(source)
        elif self.driver is None:
            self.faults.append("a copy from memory that is not page-locked")
        else:
            self.driver.begin_copy(to, source)

    def record(self) -> int:
        return self.calls

    def wait(self, event: int, tensors) -> None:
        self.handed += 1
        self.recorded.update(map(extent_of, tensors))
        if any(extent_of(tensor) in self.own for tensor in tensors if tensor.nbytes):
            self.faults.append("pinned memory was handed out")

    def mark(self) -> int:
        if self.is_copying:
            self.faults.append("a mark of the stream of copies")
        self.marked += 1
        return self.marked

    def follow(self, event: int) -> None:
        if not self.is_copying:
            self.faults.append("told to a stream that is not that of copies")
        self.followed.append((event, self.calls))

    def is_capturing(self) -> bool:
        return self.capturing


def extent_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
