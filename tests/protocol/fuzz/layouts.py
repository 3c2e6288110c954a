"""
Any bytes as the answer of a worker: what the decoder may make of them, and what it must not.

An input is a header, then the payload, then the layout. The header says how the batch is delivered,
which fields of the answer are not true, and how long the payload is. `Reader.run` puts it into a
slot as a worker would, receives and delivers it through the real ledger, and reads every byte of
every tensor and array that comes out.
"""

import ctypes
import gc
import mmap
import pickle
import struct
import warnings
from contextlib import suppress

import numpy
import torch

from shmloader import WorkerBroken
from shmloader.core import Kind, Verb, pickling
from shmloader.memory.segment import Segment, first_shape
from tests.helpers.forgery import ANSWER, LINE, READY, SLOT_BITS, Geometry, round_up
from tests.protocol.fuzz import names

# Mode, two fields of the answer by number (others: none), payload length, values of those fields.
HEADER = struct.Struct("<BBBHQQ")
SPILL, ERROR = 1, 2  # bits of the mode
NO_FIELD = 255
RING_BYTES = 1 << 21
CELL = struct.Struct("<I")

# Any error that an object's code raises while it is built from its parts is the object's own.
BUILDERS = ("get_reduced", "set_state", "get_pickle")


# Fields of an answer that are shorter than the others: kind, flags, length of the snapshot.
_SMALL = {1: 2**16, 2: 2**16, 3: 2**32}


class Wrong(AssertionError):
    """The trainer did what it must not do for any input."""


def pack(payload, layout, mode=0, fields=()):
    """Write an input; fields are at most two (number, value) of the answer."""
    (one, first), (other, second) = [*fields, (NO_FIELD, 0), (NO_FIELD, 0)][:2]
    return HEADER.pack(mode, one, other, len(payload), first, second) + payload + layout


def unpack(data):
    """Read an input of any length: (mode, fields, payload, layout)."""
    mode, one, other, length, first, second = HEADER.unpack(data[: HEADER.size].ljust(HEADER.size))
    payload = data[HEADER.size : HEADER.size + length]
    layout = data[HEADER.size + length :]
    return mode, ((one, first), (other, second)), payload, layout


class Reader:
    """A ledger of one slot, and the hand that writes into it."""

    def __init__(self):
        names.restrict(pickle, pickling)
        warnings.simplefilter("ignore")
        self._fence = Fence()
        self._open()
        gc.freeze()  # collections look at what is made from here on

    def _open(self):
        self._segment = Segment(first_shape(1, 1, RING_BYTES))
        self._ledger = self._segment.ledger
        self._geometry = Geometry(self._segment.shape)
        self._memory = mmap.mmap(self._segment.descriptor, self._segment.shape.total_bytes)
        self._start = 0
        self._start = self._find_slot()
        self._at_rest = self._ledger.counts()

    def close(self):
        """Give the segment up."""
        self._memory.close()
        self._segment.close()
        self._ledger = None

    def _find_slot(self):
        """The address of the slot in the ledger's own mapping."""
        self._commit(
            (), b"x", bytes([12]) + bytes(4) + bytes([1, 8, 0]) + bytes(8)
        )  # a uint8 tensor without dimensions
        slot = self._ledger.receive().slot
        start = self._ledger.deliver(slot, False).data_ptr()
        self._ledger.restart()
        return start

    def _commit(self, fields, payload, layout):
        """Be the worker: fill the slot, write the answer, push the cell."""
        if not self._ledger.place(0, 0, [0]):
            raise Wrong(f"no slot is free: {self._ledger.counts()}")
        offset = round_up(len(payload), LINE)
        pages = round_up(offset + len(layout), mmap.PAGESIZE)
        start = self._geometry.slot(0)
        self._memory[start : start + len(payload)] = payload
        self._memory[start + offset : start + offset + len(layout)] = layout
        answer = [0, 1, 0, 0, len(payload), offset, len(layout), pages, 0, 0]
        for number, value in fields:
            if number < len(answer):
                answer[number] = value % _SMALL.get(number, 2**64)
        ANSWER.pack_into(self._memory, self._geometry.answer(0), *answer)
        CELL.pack_into(self._memory, self._geometry.cells, READY << SLOT_BITS)
        CELL.pack_into(self._memory, self._geometry.ready_ring, 1)
        return answer[4], answer[5], answer[6]

    def run(self, data):
        """
        Deliver an input and read everything that comes out.

        Returns:
            The outcome, in a word.

        Raises:
            Wrong: The trainer did what it must not do.
        """
        mode, fields, payload, layout = unpack(data)
        if mode & ERROR:
            fields = ((1, 2), fields[1])
        length, offset, layout_length = self._commit(fields, payload, layout)
        try:
            outcome = self._read(mode & SPILL, length, offset, layout_length)
        except Exception as error:
            outcome = judge(error)
        finally:
            self._fence.lift()
        self._settle()
        return outcome

    def _read(self, spill, length, offset, layout_length):
        news = self._ledger.receive()
        if isinstance(news.kind, Verb) or news.slot != 0:
            raise Wrong(f"an answer was taken for {news}")
        if news.kind in (Kind.END, Kind.NOTHING):
            self._ledger.discard(news.slot)
            return news.kind.value
        self._fence.raise_around(self._start, length, offset, layout_length)
        batch = self._ledger.deliver(news.slot, spill)
        for start, count in leaves(batch):
            self._check_place(start, count, length)
            ctypes.string_at(start, count)
        return "batch"

    def _check_place(self, start, count, length):
        """Check that leaves in the segment lie in the payload; other memory is not checked."""
        begin = self._start - self._geometry.slots
        if start + count <= begin or start >= begin + self._geometry.total_bytes:
            return
        if not self._start <= start <= start + count <= self._start + length:
            raise Wrong(f"a leaf of {count} bytes lies at {start - self._start} of {length}")

    def _settle(self):
        """All slots are free again; what takes part in a cycle is free once it is collected."""
        if self._ledger.counts()["leased"]:
            gc.collect()
        counts = self._ledger.counts()
        if counts["leased"]:
            raise Wrong(f"a batch that is gone holds its slot: {counts}")
        self._ledger.restart()
        counts = self._ledger.counts()
        if counts["retired"]:
            self.close()
            self._open()
        elif counts != self._at_rest:
            raise Wrong(f"slots are lost: {counts}, before {self._at_rest}")


def judge(error, expected=WorkerBroken):
    """
    Name an error that is allowed: the one that is expected, or an object's own.

    Raises:
        Wrong: It is not.
    """
    if isinstance(error, Wrong):
        raise error
    if isinstance(error, expected):
        return type(error).__name__
    return judge_builder(error)


def judge_builder(error):
    """
    Name an error of an object's own code.

    Raises:
        Wrong: It comes from elsewhere.
    """
    trace, reading = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith("decode.pyx"):
            reading = trace.tb_frame.f_code.co_name.rpartition(".")[2]
        trace = trace.tb_next
    if reading not in BUILDERS:
        raise Wrong(f"{error!r} from {reading}") from error
    return "builder's error"


def leaves(batch):
    """Find the memory of all tensors and arrays of a batch: (address, bytes) each."""
    todo, seen = [batch], {}
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            yield from memory_of_tensor(value)
        elif isinstance(value, numpy.ndarray):
            yield value.__array_interface__["data"][0], value.nbytes
        else:
            todo += children(value)


def children(value):
    """List what a value holds, as far as this module knows its type."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values(), *vars_of(value)]
    if isinstance(value, names.SEQUENCES):
        return [*value, *vars_of(value)]
    return vars_of(value)


def vars_of(value):
    """List the values of a value's attributes."""
    if isinstance(value, type):
        return []
    slots = [getattr(value, name, None) for name in getattr(value, "__slots__", ())]
    return [*getattr(value, "__dict__", {}).values(), *slots]


def memory_of_tensor(tensor):
    """Find where a strided tensor of the CPU has its elements, from the first to the last."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not tensor.numel():
        return
    with suppress(RuntimeError):  # such as a wrapper that has no memory
        last = sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        yield tensor.data_ptr(), (last + 1) * tensor.element_size()


class Fence:
    """Makes AddressSanitizer, if it runs, stop reads of a slot beside its payload and layout."""

    def __init__(self):
        self._poison = _sanitizer("__asan_poison_memory_region")
        self._unpoison = _sanitizer("__asan_unpoison_memory_region")
        self._closed = (0, 0)

    def raise_around(self, start, payload, offset, layout):
        """Close what lies between and behind the two stretches of the slot that begins at start."""
        end = round_up(max(payload, offset + layout), mmap.PAGESIZE) + mmap.PAGESIZE
        self._closed = (start, end)
        self._poison(start, end)
        self._unpoison(start + offset, layout)
        self._unpoison(start, payload)

    def close(self, start, count):
        """Close count bytes."""
        self._closed = (start, count)
        self._poison(start, count)

    def lift(self):
        """Open everything again."""
        self._unpoison(*self._closed)


def _sanitizer(name):
    """A function of AddressSanitizer; without it, one that does nothing."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is None:
        return lambda start, count: None
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t
    function.restype = None
    return function
