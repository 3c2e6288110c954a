"""An accelerator that is none: its copies are done when a test says so, in any order, or fail."""

import contextlib
import ctypes
from collections.abc import Callable

import torch


class Never(RuntimeError):
    """What the stand-in raises for a copy that fails."""


class Copy:
    """
    A copy that is under way.

    It knows where it reads, and keeps nothing of that alive, as no device does.
    """

    def __init__(self, to: torch.Tensor, source: torch.Tensor) -> None:
        assert to.stride() == source.stride(), "the backend is given equal tensors"
        self.to = to
        self.address = source.data_ptr()
        self.length = source.nbytes

    def run(self) -> None:
        ctypes.memmove(self.to.data_ptr(), self.address, self.length)


class StandIn:
    """
    A backend of the CPU, which notes what no accelerator may be asked for.

    Attributes:
        when_asked: Called at each query, to let copies be done; None: all are.
        faults: What must not have happened, in words.
        handed: How many batches the consumer's stream was told to wait for.
        recorded: Where the storages begin that were noted as used by that stream.
        most_waiting: The most copies that were under way at once.
        marked: How often the consumer's stream was marked.
        followed: The marks that the stream of copies was told to wait for, each with the number of
            copies that were issued before.
    """

    device = torch.device("cpu")
    registers = True

    def __init__(self, when_asked: Callable[["StandIn"], None] | None = None) -> None:
        self.when_asked = when_asked or StandIn.finish
        self.ops: list[Copy | None] = []  # None: done
        self.registered: dict[int, int] = {}
        self.ever_registered: list[int] = []
        self.unregistered: list[int] = []
        self.own: dict[int, torch.Tensor] = {}  # storages in pinned memory
        self.faults: list[str] = []
        self.refuses_from: int | None = None  # register() fails from this call on
        self.raises_at: int | None = None  # copy() raises at this call
        self.fails_at: int | None = None  # queries behind this copy raise
        self.capturing = False
        self.is_copying = 0
        self.calls = 0
        self.handed = 0
        self.recorded: set[int] = set()
        self.most_waiting = 0
        self.marked = 0
        self.followed: list[tuple[int, int]] = []

    def register(self, address: int, length: int) -> None:
        if self.refuses_from is not None and len(self.ever_registered) >= self.refuses_from:
            raise RuntimeError("no more memory can be page-locked")
        if any(begin < address + length and address < end for begin, end in self._ranges()):
            self.faults.append("registered twice")
        self.registered[address] = length
        self.ever_registered.append(address)

    def unregister(self, address: int) -> None:
        if address not in self.registered:
            raise RuntimeError("it was not registered")
        begin, end = address, address + self.registered.pop(address)
        for op in filter(None, self.ops):
            if begin <= op.address < end:
                self.faults.append("unregistered under a copy")
        self.unregistered.append(address)

    def _ranges(self):
        return [(address, address + length) for address, length in self.registered.items()]

    def pinned(self, shape, strides, dtype) -> torch.Tensor:
        made = torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
        self.own[made.untyped_storage().data_ptr()] = made
        return made

    @contextlib.contextmanager
    def copying(self):
        self.is_copying += 1
        try:
            yield
        finally:
            self.is_copying -= 1

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        if not self.is_copying:
            self.faults.append("a copy on another stream")
        self.calls += 1
        if self.calls == self.raises_at:
            raise Never("no memory on the device")
        self._check_source(source)
        self.ops.append(Copy(to, source))
        self.most_waiting = max(self.most_waiting, self.waiting)

    def _check_source(self, source: torch.Tensor) -> None:
        begin = source.data_ptr()
        end = begin + source.nbytes
        is_own = source.untyped_storage().data_ptr() in self.own
        is_locked = is_own or any(first <= begin and end <= last for first, last in self._ranges())
        if source.nbytes and not is_locked:
            self.faults.append("a copy from memory that is not page-locked")

    @property
    def waiting(self) -> int:
        return sum(op is not None for op in self.ops)

    def run(self, number: int) -> None:
        """Let one copy be done, if it is not yet."""
        op = self.ops[number]
        if op is not None:
            op.run()
            self.ops[number] = None

    def finish(self) -> None:
        """Let all copies be done."""
        for number in range(len(self.ops)):
            self.run(number)

    def record(self) -> int:
        return len(self.ops)

    def query(self, event: int) -> bool:
        self.when_asked(self)
        if self.fails_at is not None and event > self.fails_at:
            raise Never("the copy failed")
        return not any(self.ops[:event])

    def wait(self, event: int, tensors) -> None:
        self.handed += 1
        self.recorded.update(map(extent_of, tensors))
        for tensor in tensors:
            if extent_of(tensor) and extent_of(tensor) in map(extent_of, self.own.values()):
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
