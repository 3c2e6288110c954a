"""Batches to bytes and back, and the fate of bytes that no honest worker wrote."""

import collections
import copy
import gc
import math
import pickle
import struct
import types
import zlib

import numpy
import pytest
import torch

from shmloader import WorkerBroken
from shmloader.core import _core as core
from shmloader.memory.segment_pool import SegmentPool
from shmloader.trainer.tasks import Tasks
from shmloader.transport.transport import Transport
from tests.helpers.forgery import PLACE, SLOT_BITS, push_task
from tests.helpers.leaves.parts import are_same as same
from tests.protocol.fuzz.names import Odd, Point, Sample

# The tags of a layout's nodes, in their order.
NAMES = (
    "none true false int big_int float complex str bytes list tuple dict tensor array scalar again "
    "named reduced pickled pickle storage dtype stretches numbered_str numbered_bytes inner_tensor"
)
TAGS = NAMES.split()
TAG = {name: bytes([number]) for number, name in enumerate(TAGS)}
FLOAT32 = bytes([2, 32])  # DLPack's code and bits

BATCHES = {
    "none": None,
    "true": True,
    "false": False,
    "int": -(2**63),
    "big int": [2**63, -(2**70), 2**4000],
    "float": [0.5, -0.0, math.inf],
    "complex": 1.5 - 2j,
    "str": ["", "äö", "\udc80", "\x00"],
    "bytes": [b"", b"\x00\xff" * 100],
    "list": [[], [1, [2, [3]]]],
    "tuple": ((), (1, (2,))),
    "dict": {"a": {1: None, (2, 3): "x"}, None: {}},
    "tensor": torch.arange(24).reshape(2, 3, 4),
    "scalar tensor": torch.tensor(3.5),
    "empty tensor": torch.empty(0, 5),
    "transposed": torch.arange(6).reshape(2, 3).t(),
    "channels last": torch.arange(48.0)
    .reshape(1, 3, 4, 4)
    .contiguous(memory_format=torch.channels_last),
    "expanded": torch.arange(3).expand(4, 3),
    "dtypes": [torch.ones(3, dtype=dtype) for dtype in (torch.bool, torch.bfloat16, torch.uint16)],
    "array": numpy.arange(12, dtype="i2").reshape(3, 4),
    "fortran": numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
    "strided array": numpy.arange(12)[::2],
    "records": numpy.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
    "dates": numpy.array(["2020-01-01"], dtype="M8[D]"),
    "texts": numpy.array(["a", "bcd"]),
    "empty array": numpy.empty((0, 3)),
    "array without columns": numpy.empty((3, 2, 0, 5), dtype="i2"),
    "scalars": [numpy.float32(1.5), numpy.int8(-3), numpy.bool_(True), numpy.str_("x")],
    "namedtuple": Point(torch.ones(2), 3),
    "dataclass": Sample(torch.zeros(2, 2), 7),
    "ordered dict": collections.OrderedDict(b=1, a=torch.ones(1)),
    "deque": collections.deque([1, 2]),
    "keys met twice": [{"key": 1}, {"key": b"value"}, b"value"],
    "class": [torch.float32, Point, int],
    "pickled": Odd(torch.arange(5)),
    "large and small": [torch.arange(2000), torch.arange(3), numpy.arange(4), numpy.ones(2000)],
}


# Round trips


@pytest.mark.core(every=3)
@pytest.mark.parametrize("spill", [False, True])
@pytest.mark.parametrize("name", BATCHES)
def test_round_trip(forger, name, spill):
    """What a worker wrote comes out equal, type and bits, as views of the slot or copied out."""
    forger.write(BATCHES[name])

    # A copy of an array without its gaps, as the one that arrives.
    assert same(copy.deepcopy(BATCHES[name]), forger.read(spill))


def test_all_tags_are_written(forger):
    """The batches above lead to every tag that can stand first in a layout, where all are held."""
    first_tags = set()
    for batch in BATCHES.values():
        for item in [batch, *batch] if isinstance(batch, list) else [batch]:
            slot = forger.write(item)
            first_tags.add(TAGS[forger.layout(slot)[0]])
            forger.read()

    inner_tags = {"again", "pickle", "storage", "dtype", "str", "bytes", "inner_tensor"}
    assert set(TAGS) - inner_tags - first_tags <= {"reduced", "named"}


@pytest.mark.thorough
def test_text_is_written_once(forger):
    """A text that a batch refers to often costs its bytes once, and a few for each reference."""
    text, raw = "text" * 25_000, bytes(100_000)
    keys = [f"the name of column {number}" for number in range(20)]
    rows = [dict.fromkeys(keys) for _ in range(1000)]

    assert 100_000 < size(forger, [text] * 64) < 101_000
    assert 100_000 < size(forger, [raw] * 64) < 101_000
    # A row is its own node, and for each key a reference and a value.
    assert size(forger, rows) <= 1000 * (13 + 20 * (5 + 1)) + 20 * 40 + 13


def test_text_that_is_met_once_has_no_number(forger):
    """A text to which only its container refers costs no more than its length and itself."""
    made = [f"text {number}" for number in range(100)], [b"%05d" % number for number in range(100)]

    for texts in made:
        assert 13 + sum(9 + len(text) for text in texts) == size(forger, texts)


def test_text_in_a_pickle_is_written_once(forger):
    """A large text is written once for the pickles and the containers of a batch."""
    text, raw = "text" * 25_000, bytes(100_000)
    for thing in (text, raw):
        for batch in ([thing, Odd(thing), Odd(thing)], [Odd(thing), thing, {"key": thing}]):
            assert 100_000 < size(forger, batch) < 102_000


def size(forger, batch):
    """How many bytes of a slot a batch takes, and look that it arrives equal."""
    answer = forger.answer(forger.write(batch))
    assert same(batch, forger.read())
    return answer["payload_bytes"] + answer["layout_bytes"]


# Bytes that no honest worker wrote


def number(*values):
    """Write numbers as a layout does."""
    return struct.pack(f"<{len(values)}q", *values)


def begin(tag, ordinal=0):
    """Write the tag and the number of an object that can be met twice."""
    return TAG[tag] + struct.pack("<I", ordinal)


def again(ordinal):
    """Write a reference to an object."""
    return begin("again", ordinal)


def tensor_node(shape, strides, offset=0, ordinal=0):
    """Write the node of a float32 tensor."""
    start = begin("tensor", ordinal) + FLOAT32 + bytes([len(shape)])
    return start + number(offset, *shape, *strides)


def array_node(shape, type_node=None, ordinal=0):
    """Write the node of an array of int32."""
    start = begin("array", ordinal) + bytes([0, len(shape)]) + number(0, *shape)
    return start + (INT32 if type_node is None else type_node)


def scalar_node(type_node, raw):
    """Write the node of a scalar of numpy."""
    return begin("scalar") + type_node + TAG["bytes"] + number(len(raw)) + raw


def checked(text, checksum=None):
    """Write bytes with their checksum."""
    checksum = zlib.crc32(text) if checksum is None else checksum
    return number(len(text)) + text + checksum.to_bytes(4, "little")


def numbered_text(text, ordinal, tag="numbered_str"):
    """Write the node of a text that may be met again."""
    return begin(tag, ordinal) + number(len(text)) + text


def list_of(*nodes):
    """Write the node of a list, the first object of its layout."""
    return begin("list") + number(len(nodes)) + b"".join(nodes)


def named_node(name, checksum=None, ordinal=0):
    """Write the node of a class or function, given as the module and the name in it."""
    return begin("named", ordinal) + checked(name, checksum)


def dtype_node(dtype, ordinal=1):
    """Write the node of an array's type."""
    return begin("dtype", ordinal) + checked(pickle.dumps(dtype))


def text_node(text):
    """Write the node of an array's type that its text describes."""
    return TAG["str"] + number(len(text)) + text


def pickled_node(*parts, ordinal=0):
    """Write the node of a pickle without leaves beside it."""
    return begin("pickled", ordinal) + number(0) + TAG["pickle"] + number(*parts)


def reduced_node(items, pairs):
    """Write the node of an OrderedDict without a state; items and pairs are numbered from 3."""
    build = named_node(b"collections\nOrderedDict", ordinal=1)
    args = begin("tuple", 2) + number(0)
    return begin("reduced") + build + args + TAG["none"] + items + pairs


INT32 = TAG["int"] + number(5)
BROKEN_LAYOUTS = {
    "nothing": b"",
    "unknown tag": b"\xff",
    "bytes too many": TAG["none"] * 2,
    "number cut short": TAG["int"] + b"\x00" * 7,
    "negative count": begin("list") + number(-1),
    "count beyond the layout": begin("list") + number(1 << 62),
    "text beyond the layout": TAG["bytes"] + number(100),
    "object with another's number": begin("list", 1) + number(0),
    "object with a number that is taken": begin("list") + number(1) + begin("list") + number(0),
    "number of an object cut short": TAG["list"] + b"\x00" * 3,
    "unknown reference": again(3),
    "reference to what is being read": begin("pickled") + number(1) + again(0),
    "reference to a tuple that is being read": begin("tuple") + number(1) + again(0),
    "reference to an object that is being built": begin("reduced") + TAG["none"] + again(0),
    "tensor beyond the payload": tensor_node([1 << 20], [1]),
    "tensor before the payload": tensor_node([1], [1], offset=-4),
    "negative dimension": tensor_node([-1], [1]),
    "negative stride": tensor_node([2], [-1]),
    "strides that overflow": tensor_node([1 << 33, 1 << 33], [1 << 33, 1 << 33]),
    "elements that overflow": tensor_node([1 << 40, 1 << 40], [0, 0]),
    "elements that overflow before an empty axis": tensor_node([1 << 40, 1 << 40, 0], [0, 0, 0]),
    "too many dimensions": begin("tensor") + FLOAT32 + bytes([65]) + number(0, *[1] * 130),
    "unknown tensor type": begin("tensor") + bytes([2, 7, 0]) + number(0),
    "text that is not UTF-8": TAG["str"] + number(1) + b"\xff",
    "numbered text that is not UTF-8": numbered_text(b"\xff", 0),
    "numbered text with another's number": numbered_text(b"x", 1),
    "numbered bytes with another's number": numbered_text(b"x", 7, "numbered_bytes"),
    "numbered bytes beyond the layout": begin("numbered_bytes") + number(1 << 62),
    "text of a negative length": begin("numbered_str") + number(-1),
    "number of a text cut short": TAG["numbered_str"] + b"\x00" * 3,
    "reference to a text that comes later": list_of(again(1), numbered_text(b"x", 1)),
    "reference to a text that has no number": list_of(TAG["str"] + number(1) + b"x", again(1)),
    "key that refers to what cannot be hashed": list_of(
        begin("list", 1) + number(0), begin("dict", 2) + number(1) + again(1) + TAG["none"]
    ),
    "key that refers to a tuple of what cannot be hashed": list_of(
        begin("tuple", 1) + number(1) + again(0),
        begin("dict", 2) + number(1) + again(1) + TAG["none"],
    ),
    "key that refers to its dict": begin("dict") + number(1) + again(0) + TAG["none"],
    "array whose type refers to a text": list_of(
        numbered_text(b"<i4", 1), array_node([1], again(1), ordinal=2)
    ),
    "object built by a text": list_of(
        numbered_text(b"int", 1), begin("reduced", 2) + again(1) + begin("tuple", 3) + number(0)
    ),
    "object built of a text": list_of(
        numbered_text(b"int", 1), begin("reduced", 2) + TAG["none"] + again(1)
    ),
    "object of a class that is a text": list_of(
        numbered_text(b"int", 1),
        begin("reduced", 2) + TAG["none"] + begin("tuple", 3) + number(1) + again(1),
    ),
    "object whose items are a text": reduced_node(
        numbered_text(b"x", 3), begin("dict", 4) + number(0)
    ),
    "key that cannot be hashed": begin("dict")
    + number(1)
    + begin("list", 1)
    + number(0)
    + TAG["none"],
    "array beyond the payload": array_node([1 << 20]),
    "array that overflows": array_node([1 << 33, 1 << 33]),
    "array of objects": array_node([], TAG["int"] + number(17)),
    "array of a described type of objects": array_node([1], text_node(b"|O8")),
    "array whose type is described in another way": array_node([1], text_node(b"i4,i4")),
    "array whose type is longer than any memory": array_node([1], text_node(b"|V9999999999")),
    "array whose type is pickled and has objects": array_node([1], dtype_node(numpy.dtype("O"))),
    "array whose type is pickled and is no type": array_node([1], dtype_node(int)),
    "array whose type is its own": array_node([1], again(0)),
    "array whose type is an array": b"".join(
        begin("array", ordinal) + bytes([0, 0]) + number(0) for ordinal in range(100)
    ),
    "empty array of more than there are addresses": array_node([0, 1 << 62, 1 << 62]),
    "scalar of another length": scalar_node(INT32, b"x"),
    "name with a wrong checksum": named_node(b"builtins\nint", checksum=1),
    "name without a module": named_node(b"int"),
    "name of too many parts": named_node(b"builtins\nint\nreal"),
    "name that is not UTF-8": named_node(b"builtins\n\xff"),
    "type with a wrong checksum": array_node([1], begin("dtype", 1) + checked(b"xx", 1)),
    "scalar that numpy cannot make": scalar_node(text_node(b"<U1"), b"\xff" * 4),
    "name shorter than a checksum": begin("named") + number(2) + b"xx",
    "name in memory full of zeros": begin("named") + number(4) + bytes(4),
    "name in memory full of ones": begin("named") + number(8) + b"\xff" * 8,
    "pickle with a wrong checksum": pickled_node(0, 1, 4, 0),
    "pickle in memory full of zeros": pickled_node(0, 0, 0, 0),
    "pickle without leaves and without a pickle": begin("pickled") + number(0) + TAG["none"],
    "pickle on its own": TAG["pickle"] + number(0, 0, 0, 0),
    "storage beyond the payload": begin("storage") + number(1 << 20, 0),
    "object built by no callable": begin("reduced") + TAG["true"] + begin("tuple", 1) + number(0),
    "object built of no tuple": begin("reduced") + TAG["none"] + TAG["none"],
    "object of no class": begin("reduced") + TAG["none"] + begin("tuple", 1) + number(0),
    "object of a class that is none": begin("reduced")
    + TAG["none"]
    + begin("tuple", 1)
    + number(1)
    + INT32,
    # Its repr would have 4^30 numbers.
    "object built by a large tensor": begin("reduced")
    + tensor_node([4] * 30, [0] * 30, ordinal=1)
    + TAG["none"],
    "object whose items are none": reduced_node(TAG["none"], begin("dict", 3) + number(0)),
    "object whose pairs are none": reduced_node(begin("list", 3) + number(0), TAG["none"]),
    "pickle beyond the payload": pickled_node(0, 1, 1 << 40, 0),
}


@pytest.mark.core(every=3)
@pytest.mark.parametrize("name", BROKEN_LAYOUTS)
def test_broken_layout_is_refused(forger, name):
    """A layout that contradicts itself raises WorkerBroken, and the slot is free at once."""
    slot = forger.write(torch.zeros(100))
    forger.forge_layout(slot, BROKEN_LAYOUTS[name])
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(WorkerBroken):
            forger.read()
        counts = forger.ledger.counts()
    finally:
        gc.enable()

    assert 0 == counts["leased"]


def test_pickle_is_summed_as_it_is_loaded(forger, monkeypatch):
    """Bytes that a worker writes over a pickle while its checksum is compared are not loaded."""
    slot = forger.write(Odd(torch.arange(5)))
    start = forger.geometry.slot(slot)
    length = forger.answer(slot)["payload_bytes"]

    def sum_and_overwrite(pickled):
        checksum = zlib.crc32(pickled)
        forger.memory[start : start + length] = bytes(length)
        return checksum

    monkeypatch.setattr(core, "zlib", types.SimpleNamespace(crc32=sum_and_overwrite))

    assert type(forger.read()) is Odd


# What a layout may nest without end, by the level: each must stop before the stack does.
ENDLESS = {
    "lists": lambda level: begin("list", level) + number(1),
    "tuples": lambda level: begin("tuple", level) + number(1),
    "dicts": lambda level: begin("dict", level) + number(1) + TAG["none"],
    "types of arrays": lambda level: begin("array", level) + bytes([0, 0]) + number(0),
    "types of scalars": lambda level: begin("scalar", level),
    "callables": lambda level: begin("reduced", level),
    "leaves of pickles": lambda level: begin("pickled", level) + number(1),
}


def endless(what, levels):
    """Write a layout of so many levels."""
    return b"".join(map(ENDLESS[what], range(levels)))


@pytest.mark.thorough
@pytest.mark.parametrize("what", ENDLESS)
def test_endless_nesting_is_an_error(run_program, what):
    """A layout nested deeper than any stack raises an error and does not crash."""
    script = f"""
from tests.helpers.forgery import Forger
from tests.protocol.test_layout import endless
forger = Forger(slots=1)
slot = forger.write(b"")
forger.forge_layout(slot, endless({what!r}, 100000))
try:
    forger.read()
except Exception as error:
    print(type(error).__name__)
"""
    status, lines, errors = run_program(script)

    assert (0, "") == (status, errors)
    assert ["WorkerBroken"] == lines


def test_broken_answer_is_refused(forger):
    """An impossible answer names worker and slot before it is used; ladder_answers has each one."""
    slot = forger.write(torch.zeros(10))
    forger.forge_answer(slot, layout_offset=64, layout_bytes=2**64 - 64)

    with pytest.raises(WorkerBroken, match=f"worker 0 sent slot {slot}: "):
        forger.read()


# What a worker may find in its task ring, and why it refuses it; ladder_orders has the orders.
BROKEN_TASKS = {
    "a slot that the user holds": (PLACE << SLOT_BITS, "the slot is not this worker's"),
    "a verb of a worker's": (4 << SLOT_BITS, "an unknown request 4"),
    "unknown verb": (99 << SLOT_BITS, "an unknown request 99"),
    "zeros": (0, "an unknown request 0"),
}


@pytest.mark.parametrize("name", BROKEN_TASKS)
def test_broken_task_is_refused(forger, name):
    """A worker refuses a cell that leads to no order for it, and writes nothing."""
    cell, reason = BROKEN_TASKS[name]
    forger.write(torch.arange(100))
    held = forger.read()
    push_task(forger.memory, forger.geometry, cell)
    before = bytes(forger.memory[forger.geometry.table : forger.geometry.table_end])

    with pytest.raises(WorkerBroken, match=reason):
        forger.desk.take(1.0)

    assert torch.equal(torch.arange(100), held)
    assert before == forger.memory[forger.geometry.table : forger.geometry.table_end]
    with pytest.raises(RuntimeError, match="no request in hand"):
        forger.desk.write(1, False)


def test_grant_that_was_overwritten_is_refused(forger):
    """A grant beyond the range does not lead a worker into the next slot."""
    forger.ledger.place(0, 0, [0])
    forger.desk.take(1.0)
    struct.pack_into("<Q", forger.memory, forger.geometry.order(0) + 40, 1 << 62)

    with pytest.raises(WorkerBroken, match="a quota of"):
        forger.desk.empty((1 << 28,), torch.uint8)


FORGED_TASK = """
import mmap, os, sys, warnings
import torch
from torch.utils.data import Dataset
from shmloader import DataLoader
from tests.helpers.forgery import LINE, PLACE, SLOT_BITS, Geometry, push_task
from tests.helpers.programs import wait_until

class Rows(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.full((1000,), index)

warnings.simplefilter("ignore")
loader = DataLoader(Rows(), batch_size=2, num_workers=1, prefetch_factor=1, slots=8,
                    restarts={restarts}, multiprocessing_context="fork")
batches = iter(loader)
held = [next(batches), next(batches)]
copies = [batch.clone() for batch in held]
segment = batches._transport.segment
geometry = Geometry(segment.shape)
memory = mmap.mmap(segment.descriptor, segment.shape.total_bytes)
slots = [(batch.data_ptr() - min(b.data_ptr() for b in held)) // geometry.range_bytes
         for batch in held]
read_pos = geometry.task_ring + LINE
wait_until(lambda: memory[geometry.task_ring] == memory[read_pos])  # idle: it has taken all
before = memory[read_pos]
rest = []
try:  # without restarts, the death of the worker is raised wherever the trainer is just then
    for slot in {cells}:
        push_task(memory, geometry, PLACE << SLOT_BITS | slot)
    wait_until(lambda: memory[read_pos] != before)  # or else the trainer's next push is first
    for batch in batches:
        rest.append(batch)
    print("all", len(rest), [batch[0, 0].item() for batch in rest] == list(range(4, 40, 2)))
except RuntimeError as error:
    print("exited unexpectedly" in str(error))
print(all(map(torch.equal, held, copies)))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("cells", ["slots", "[5000000]", "range(20)"])
@pytest.mark.parametrize("restarts", [0, 1])
def test_worker_that_was_sent_a_forged_task_ends(run_program, cells, restarts):
    """It says why and ends: the trainer raises or heals, and no held batch changes."""
    task = FORGED_TASK.format(cells=cells, restarts=restarts)
    status, lines, errors = run_program(task)

    assert (0, ["all 18 True" if restarts else "True", "True"]) == (status, lines), errors
    assert "WorkerBroken: worker 0 received slot " in errors


# Ends


BATCH, _, END, NOTHING = 1, 2, 3, 4  # kinds of answers


def answered(forger, is_iterable, kinds):
    """Returns tasks of which each has an answer of a kind."""
    transport = Transport(forger.segment, 0, SegmentPool(), heals=False)
    tasks = Tasks(transport, is_iterable=is_iterable, is_seeded=False, is_bound=True)
    for number, kind in enumerate(kinds):
        tasks.put(0, (number, [number]))
        transport.pump()
        forger.forge_answer(forger.write_next(torch.ones(1)), kind=kind)
    return tasks


def receive_kinds(forger, is_iterable, kinds):
    """Receive answers of these kinds. Returns the numbers of those that are reported to torch."""
    tasks, pending = answered(forger, is_iterable, kinds), dict.fromkeys(range(len(kinds)), (0,))
    answers = iter(lambda: tasks.receive(pending, None, [True]), None)
    numbers = []
    for number, _ in answers:
        del pending[number]
        numbers.append(number)
    return numbers


@pytest.mark.parametrize("is_iterable", [False, True])
@pytest.mark.parametrize("kinds", [[END], [NOTHING], [BATCH, NOTHING]])
def test_answer_that_loses_a_batch_is_refused(forger, kinds, is_iterable):
    """Only a worker of an iterable dataset may answer with an end, and with NOTHING after it."""
    if is_iterable and kinds == [END]:
        assert [0] == receive_kinds(forger, is_iterable, kinds)
    else:
        with pytest.raises(WorkerBroken, match="instead of a batch"):
            receive_kinds(forger, is_iterable, kinds)


def test_requests_behind_the_end_are_answered_with_nothing(forger):
    """Requests that a worker skips because its dataset is exhausted are not reported to torch."""
    assert [0] == receive_kinds(forger, True, [END, NOTHING])
    assert 0 == forger.ledger.counts()["ready"]


def test_end_that_an_interrupt_lost_counts(forger):
    """NOTHING after an end that was received, but not reported to torch yet, is no error."""
    tasks = answered(forger, True, [END, NOTHING])
    forger.ledger.receive()

    assert tasks.receive({0: (0,), 1: (0,)}, 0, [True]) is None


def test_resume_that_does_not_fit_is_an_error(forger):
    """A resume is pushed, or refused because the ring cannot be as full as its reader says."""
    for _ in range(forger.geometry.ring_capacity):
        forger.ledger.tell_resume(0, None)

    with pytest.raises(WorkerBroken, match="worker 0"):
        forger.ledger.tell_resume(0, None)


@pytest.mark.parametrize(("repeats", "most"), [(False, 1), (True, 256)])
def test_what_a_replacement_is_told_is_bounded(forger, repeats, most):
    """A worker without an answer for ever: only its last word counts, or its place gets lost."""
    progress = forger.ledger.progress
    progress.heals = progress.publishes = True
    progress.repeats = repeats
    kept = []
    for word in range(most + 1):
        forger.ledger.tell_resume(0, word)
        forger.desk.take(1.0)
        forger.desk.resumed()
        forger.ledger.receive()
        kept.append(len(progress.pasts[0].seeds))

    assert (most, (most,)) == (max(kept), progress.pasts[0].seeds)
    assert repeats != progress.pasts[0].is_known
