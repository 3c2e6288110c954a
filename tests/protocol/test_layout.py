"""Batches to bytes and back, and the fate of bytes that no honest worker wrote."""

import collections
import dataclasses
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
from shmloader.memory.pool import SegmentPool
from shmloader.trainer.transport import Transport
from tests.helpers.forgery import RESUMED, SLOT_BITS, Forger
from tests.helpers.programs import run

# The tags of a layout's nodes, in their order.
NAMES = (
    "none true false int big_int float complex str bytes list tuple dict tensor array scalar again "
    "named reduced pickled"
)
TAGS = NAMES.split()
TAG = {name: bytes([number]) for number, name in enumerate(TAGS)}
FLOAT32 = bytes([2, 32])  # DLPack's code and bits

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Sample:
    picture: torch.Tensor
    label: int


class Odd:
    """An object that can travel only as a pickle."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __eq__(self, other):
        return type(other) is Odd and torch.equal(self.tensor, other.tensor)


@pytest.fixture
def forger():
    """Give a ledger and a desk in one process."""
    pair = Forger()
    yield pair
    pair.close()


def same(one, other):
    """Compare two batches: types, dtypes, shapes, strides, bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape, one.stride()) == (
            other.dtype,
            other.shape,
            other.stride(),
        ) and torch.equal(one, other)
    if isinstance(one, (numpy.ndarray, numpy.generic)):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and bool(
            numpy.array_equal(one, other)
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        return same(vars(one), vars(other))
    return one == other


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
    "scalars": [numpy.float32(1.5), numpy.int8(-3), numpy.bool_(True), numpy.str_("x")],
    "namedtuple": Point(torch.ones(2), 3),
    "dataclass": Sample(torch.zeros(2, 2), 7),
    "ordered dict": collections.OrderedDict(b=1, a=torch.ones(1)),
    "deque": collections.deque([1, 2]),
    "class": [torch.float32, Point, int],
    "pickled": Odd(torch.arange(5)),
}


# Round trips


@pytest.mark.core(every=3)
@pytest.mark.parametrize("spill", [False, True])
@pytest.mark.parametrize("name", BATCHES)
def test_round_trip(forger, name, spill):
    """What a worker wrote comes out equal, type and bits, as views of the slot or copied out."""
    forger.write(BATCHES[name])

    assert same(BATCHES[name], forger.read(spill))


def test_all_tags_are_written(forger):
    """The batches above lead to every tag there is, apart from that for objects met twice."""
    first_tags = set()
    for batch in BATCHES.values():
        for item in batch if isinstance(batch, list) else [batch]:
            slot = forger.write(item)
            first_tags.add(TAGS[forger.layout(slot)[0]])
            forger.read()

    assert set(TAGS) - {"again"} - first_tags <= {"reduced", "named"}


def test_objects_met_twice_stay_one(forger):
    """
    A list, dict, tensor or array that stands in a batch twice is one object again, even in a cycle.
    """
    things = [[], {}, torch.ones(2), numpy.ones(2), Odd(torch.ones(1))]
    batch = [things, things[0], *things]
    things[0].append(things[0])
    forger.write(batch)

    again = forger.read()

    assert again[0][0] is again[1]
    assert again[1][0] is again[1]
    assert [True] * 5 == [x is y for x, y in zip(again[0], again[2:], strict=True)]


def test_overlapping_tensors_stay_aliases(forger):
    """Two views of one storage are two views of one stretch of the slot."""
    base = torch.arange(10)
    forger.write([base[:6], base[4:]])

    one, other = forger.read()
    one[5] = 99

    assert [4, 99, 6, 7, 8, 9] == other.tolist()


def test_last_alias_frees_the_slot(forger):
    """A slot is held by each tensor and array of its batch and free when the last is gone."""
    forger.write([torch.ones(2), numpy.ones(2)])
    tensor, array = forger.read()

    del tensor
    assert 1 == forger.ledger.counts()["leased"]
    del array
    assert 0 == forger.ledger.counts()["leased"]


# Bytes that no honest worker wrote


def number(*values):
    """Write numbers as a layout does."""
    return struct.pack(f"<{len(values)}q", *values)


def tensor_node(shape, strides, offset=0):
    """Write the node of a float32 tensor."""
    return TAG["tensor"] + FLOAT32 + bytes([len(shape)]) + number(offset, *shape, *strides)


def named_node(name, checksum=None):
    """Write the node of a class or dtype."""
    checksum = zlib.crc32(name) if checksum is None else checksum
    name += checksum.to_bytes(4, "little")
    return TAG["named"] + number(len(name)) + name


def reduced_node(items, pairs):
    """Write the node of an OrderedDict without a state."""
    build = named_node(pickle.dumps(collections.OrderedDict)) + TAG["tuple"] + number(0)
    return TAG["reduced"] + build + TAG["none"] + items + pairs


INT32 = TAG["int"] + number(5)
BROKEN_LAYOUTS = {
    "nothing": b"",
    "unknown tag": b"\xff",
    "bytes too many": TAG["none"] * 2,
    "number cut short": TAG["int"] + b"\x00" * 7,
    "negative count": TAG["list"] + number(-1),
    "count beyond the layout": TAG["list"] + number(1 << 62),
    "text beyond the layout": TAG["bytes"] + number(100),
    "unknown reference": TAG["again"] + number(3),
    "reference to what is being read": TAG["pickled"] + TAG["again"] + number(0),
    "tensor beyond the payload": tensor_node([1 << 20], [1]),
    "tensor before the payload": tensor_node([1], [1], offset=-4),
    "negative dimension": tensor_node([-1], [1]),
    "negative stride": tensor_node([2], [-1]),
    "strides that overflow": tensor_node([1 << 33, 1 << 33], [1 << 33, 1 << 33]),
    "elements that overflow": tensor_node([1 << 40, 1 << 40], [0, 0]),
    "elements that overflow before an empty axis": tensor_node([1 << 40, 1 << 40, 0], [0, 0, 0]),
    "too many dimensions": TAG["tensor"] + FLOAT32 + bytes([65]) + number(0, *[1] * 130),
    "unknown tensor type": TAG["tensor"] + bytes([2, 7, 0]) + number(0),
    "text that is not UTF-8": TAG["str"] + number(1) + b"\xff",
    "key that cannot be hashed": TAG["dict"] + number(1) + TAG["list"] + number(0) + TAG["none"],
    "array beyond the payload": TAG["array"] + INT32 + bytes([0, 1]) + number(0, 1 << 20),
    "array that overflows": TAG["array"] + INT32 + bytes([0, 2]) + number(0, 1 << 33, 1 << 33),
    "array of objects": TAG["array"] + TAG["int"] + number(17) + bytes([0, 0]) + number(0),
    "array whose type is an array": TAG["array"] * 100,
    "empty array of more than there are addresses": TAG["array"]
    + INT32
    + bytes([0, 3])
    + number(0, 0, 1 << 62, 1 << 62),
    "scalar of another length": TAG["scalar"] + INT32 + TAG["bytes"] + number(1) + b"x",
    "name with a wrong checksum": named_node(pickle.dumps(int), checksum=1),
    "scalar that numpy cannot make": TAG["scalar"]
    + named_node(pickle.dumps(numpy.dtype("U1")))
    + TAG["bytes"]
    + number(4)
    + b"\xff" * 4,
    "name shorter than a checksum": TAG["named"] + number(2) + b"xx",
    "name in memory full of zeros": TAG["named"] + number(4) + bytes(4),
    "name in memory full of ones": TAG["named"] + number(8) + b"\xff" * 8,
    "pickle with a wrong checksum": TAG["pickled"] + number(0, 1, 4, 0),
    "pickle in memory full of zeros": TAG["pickled"] + number(0, 0, 0, 0),
    "object built by no callable": TAG["reduced"] + TAG["none"] + TAG["tuple"] + number(0),
    # Its repr would have 4^30 numbers.
    "object built by a large tensor": TAG["reduced"]
    + tensor_node([4] * 30, [0] * 30)
    + TAG["none"],
    "object whose items are none": reduced_node(TAG["none"], TAG["dict"] + number(0)),
    "object whose pairs are none": reduced_node(TAG["list"] + number(0), TAG["none"]),
    "pickle beyond the payload": TAG["pickled"] + number(0, 1, 1 << 40, 0),
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


# What a layout may nest without end: each must stop before the stack does.
ENDLESS = {
    "lists": TAG["list"] + number(1),
    "tuples": TAG["tuple"] + number(1),
    "dicts": TAG["dict"] + number(1) + TAG["none"],
    "types of arrays": TAG["array"],
    "types of scalars": TAG["scalar"],
    "callables": TAG["reduced"],
}


@pytest.mark.core(every=5)
@pytest.mark.parametrize("what", ENDLESS)
def test_endless_nesting_is_an_error(tmp_path, what):
    """A layout nested deeper than any stack raises an error and does not crash."""
    script = f"""
from tests.helpers.forgery import Forger
forger = Forger(slots=1)
slot = forger.write(b"")
forger.forge_layout(slot, {ENDLESS[what]!r} * 100000)
try:
    forger.read()
except Exception as error:
    print(type(error).__name__)
"""
    status, lines, errors = run(tmp_path, script)

    assert (0, "") == (status, errors)
    assert lines in (["WorkerBroken"], ["RecursionError"])


BROKEN_ANSWERS = {
    "another ticket": {"ticket": 77},
    "unknown kind": {"kind": 9},
    "no kind": {"kind": 0},
    "more pages than the range": {"pages_bytes": 1 << 62},
    "payload beyond the pages": {"payload_bytes": 1 << 62},
    "layout starts beyond the pages": {"layout_offset": 1 << 62},
    "layout ends beyond the pages": {"layout_bytes": 1 << 62},
    "layout wraps around": {"layout_offset": 64, "layout_bytes": 2**64 - 64},
}


@pytest.mark.parametrize("name", BROKEN_ANSWERS)
def test_broken_answer_is_refused(forger, name):
    """An impossible answer raises WorkerBroken with the worker's number before it is used."""
    slot = forger.write(torch.zeros(10))
    forger.forge_answer(slot, **BROKEN_ANSWERS[name])

    with pytest.raises(WorkerBroken, match=f"worker 0 sent slot {slot}: "):
        forger.read()


BROKEN_CELLS = {
    "no such slot": 4 << SLOT_BITS | 1000,
    "a slot that is free": 4 << SLOT_BITS | 1,
    "a spare slot": 4 << SLOT_BITS | 5,
    "unknown verb": 99 << SLOT_BITS,
    "an answer to no resume": RESUMED << SLOT_BITS,
}


@pytest.mark.parametrize("name", BROKEN_CELLS)
def test_broken_cell_is_refused(forger, name):
    """A cell that means nothing raises WorkerBroken, and no slot changes hands."""
    forger.write(torch.zeros(10))
    before = forger.ledger.counts()
    struct.pack_into("<I", forger.memory, forger.cell_position(), BROKEN_CELLS[name])

    with pytest.raises(WorkerBroken):
        forger.read()
    assert before == forger.ledger.counts()


BATCH, _, END, NOTHING = 1, 2, 3, 4  # kinds of answers


def receive_kinds(forger, is_iterable, kinds):
    """
    Send one request for each kind and receive the answers.

    Returns:
        The numbers of the tasks whose answers are reported to torch.
    """
    transport = Transport(forger.segment, 0, SegmentPool(), False, is_iterable=is_iterable)
    pending = dict.fromkeys(range(len(kinds)), (0,))
    for number, kind in enumerate(kinds):
        transport.put(0, (number, [number]))
        forger.forge_answer(forger.write_next(torch.ones(1)), kind=kind)
    answers = iter(lambda: transport.receive(pending, None, [True]), None)
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
        with pytest.raises(WorkerBroken, match="in place of a batch"):
            receive_kinds(forger, is_iterable, kinds)


def test_requests_behind_the_end_are_answered_with_nothing(forger):
    """Requests that a worker skips because its dataset is exhausted are not reported to torch."""
    assert [0] == receive_kinds(forger, True, [END, NOTHING])
    assert 0 == forger.ledger.counts()["ready"]


def test_end_that_an_interrupt_lost_counts(forger):
    """NOTHING after an end that was received, but not reported to torch yet, is no error."""
    transport = Transport(forger.segment, 0, SegmentPool(), False, is_iterable=True)
    for number, kind in enumerate([END, NOTHING]):
        transport.put(0, (number, [number]))
        forger.forge_answer(forger.write_next(torch.ones(1)), kind=kind)
    forger.ledger.receive()

    assert transport.receive({0: (0,), 1: (0,)}, 0, [True]) is None


def test_resume_that_does_not_fit_is_an_error(forger):
    """A resume is pushed, or refused because the ring cannot be as full as its reader says."""
    for _ in range(forger.geometry.ring_capacity):
        forger.ledger.tell_resume(0, None)

    with pytest.raises(WorkerBroken, match="worker 0"):
        forger.ledger.tell_resume(0, None)


def test_late_writes_change_nothing(forger):
    """Bytes that a worker writes after the trainer received its answer are not read."""
    slot = forger.write([torch.ones(3), "text"])
    received = forger.ledger.receive().slot
    forger.forge_answer(slot, payload_bytes=1 << 62, layout_bytes=1 << 62, ticket=9, kind=0)

    assert received == slot
    assert same([torch.ones(3), "text"], forger.ledger.deliver(slot, False, pickle.loads))


FUZZ = """
import gc, random, resource, struct, warnings
import numpy, torch
from shmloader.core import Verb, pickling
from tests.helpers.forgery import ANSWER, ANSWER_FIELDS, Forger
from tests.protocol.test_layout import BATCHES
warnings.simplefilter("ignore")
random.seed({seed})
gc.freeze()  # collections look at what is made from here on
resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))  # a memory bomb is an error here
batches = list(BATCHES.values())
EDGES = [0, 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def sit_down():
    # Begin afresh: a flag that says that a worker kept a batch takes its slot out of use.
    pair, starts = Forger(slots=32), {{}}
    held = []
    for _ in range(32):
        slot = pair.write(torch.ones(1))
        held.append(pair.read())
        starts[slot] = held[-1].data_ptr()
    return pair, starts


def mutate(position, length):
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        how = random.random()
        at = position + random.randrange(max(length, 1))
        if how < 0.4:
            forger.memory[at] ^= 1 << random.randrange(8)
        elif how < 0.7:
            forger.memory[at] = random.randrange(256)
        else:
            at = position + random.randrange(max(length - 7, 1))
            edge = random.choice(EDGES) + random.randrange(9)
            struct.pack_into("<Q", forger.memory, at, edge % 2**64)


def disturb(slot):
    how = random.random()
    if how < 0.7:
        start, end = forger._layout_span(slot)
        mutate(start, end - start)
    elif how < 0.9:
        mutate(forger.geometry.answer(slot), ANSWER.size)
    else:
        mutate(forger.cell_position(), 4)


def look(value, first, last):
    if isinstance(value, torch.Tensor) and value.numel() and value.device.type == "cpu":
        if type(value) is torch.Tensor and value.layout is torch.strided:
            span = sum((n - 1) * s for n, s in zip(value.shape, value.stride())) + 1
            end = value.data_ptr() + span * value.element_size()
            if not first <= value.data_ptr() <= end <= last:
                raise SystemExit("a tensor lies outside of its payload")
            if value.numel() < 10000:
                value.clone()
    elif type(value) is numpy.ndarray and value.size:
        start = value.__array_interface__["data"][0]
        if not first <= start <= start + value.nbytes <= last:
            raise SystemExit("an array lies outside of its payload")
        if value.size < 10000:
            value.copy()
    elif isinstance(value, dict):
        for item in value.values():
            look(item, first, last)
    elif type(value) in (list, tuple):
        for item in value:
            look(item, first, last)


def step(count):
    batch = random.choice(batches)
    slot = forger.write(batch)
    disturb(slot)
    try:
        news = forger.ledger.receive()
        if news.verb is Verb.READY:
            payload_bytes = forger.answer(news.slot)["payload_bytes"]
            value = forger.ledger.deliver(news.slot, False, pickling.loads)
            if news.slot in starts:
                look(value, starts[news.slot], starts[news.slot] + payload_bytes)
            return "delivered"
    except Exception as error:
        return type(error).__name__
    return "other"


forger, starts = sit_down()
outcomes = {{}}
for count in range({steps}):
    # An answer that was refused stays the worker's: its slot comes back when that is reaped.
    if forger.ledger.counts()["free"] < 4:
        gc.collect()
        forger.close()
        forger, starts = sit_down()
    try:
        outcome = step(count)
    except RecursionError:
        outcome = "RecursionError"
    outcomes[outcome] = outcomes.get(outcome, 0) + 1
gc.collect()
counts = forger.ledger.counts()
enough = [outcomes.get(name, 0) > 100 for name in ("delivered", "WorkerBroken")]
print(sum(outcomes.values()), *enough)
print(counts["leased"], counts["ready"])
print(outcomes)
"""


def test_random_corruption_is_survived(tmp_path, seeded, record_property):
    """Any bytes in layout, answer and cell give the trainer an error or a batch within bounds."""
    steps = 12000
    status, lines, errors = run(tmp_path, FUZZ.format(seed=seeded, steps=steps))

    assert (0, "") == (status, errors), seeded
    record_property("outcomes", lines[2])
    assert [f"{steps} True True", "0 0"] == lines[:2]
