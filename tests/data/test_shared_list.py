"""`SharedList`: what is read is what was given, from one memory that no process can change."""

import collections
import copy
import dataclasses
import fcntl
import multiprocessing
import os
import pickle
import resource
import weakref

import hypothesis
import numpy
import pytest
import torch
from hypothesis import strategies as st

from shmloader import OutOfSharedMemory, SharedList
from shmloader.memory import limits
from shmloader.memory.account import account
from shmloader.memory.segment import default_ring_bytes
from tests.conformance.made import Pair, Record
from tests.helpers.copies import Child

BLOCK = 4096  # records that one block of the index is for


class Custom:
    """An object that only a pickle can say."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Custom and self.value == other.value

    __hash__ = None


PLAIN = [
    None, True, False, 0, -1, 63, -64, 64, 2**31, 2**63 - 1, -(2**63), 2**63, 2**200, -(2**100),
    0.0, -0.0, float("inf"), 1e-300, 1 + 2j, "", "text", "ü\udc80", "x" * 100_000, b"", b"\0\xff",
    b"y" * 5000, [], [1], [1, 2, 300], [1.5, 2.5], [1, 2.5], [True, 1], [2**70, 1], (), (1, 2),
    (0.5,), ("a", None), {}, {"a": 1}, {"a": {"b": [1, {"c": ()}]}}, {1: "one", None: 2, "k": 3},
    {"x" * 300: 1}, {1, 2}, frozenset("a"), range(5), Pair(1, "y"), Record(1.5, "n"), Custom([1]),
    numpy.float32(1.5), numpy.datetime64("2020-01-01"), collections.OrderedDict(b=1, a=2),
    int, dataclasses.replace, [[[[[]]]]], [None] * 1000, list(range(-500, 500)),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(PLAIN)))
def test_a_record_is_what_was_given(at):
    """Equal, and of the same types, whatever it is made of."""
    with SharedList([PLAIN[at], [PLAIN[at]], {"key": PLAIN[at]}]) as records:
        assert [PLAIN[at], [PLAIN[at]], {"key": PLAIN[at]}] == list(records)
        assert type(PLAIN[at]) is type(records[0])
        assert repr(PLAIN[at]) == repr(records[0]) or type(PLAIN[at]) is Custom


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**66), 2**66), st.floats(), st.text(),
    st.binary(), st.complex_numbers(), st.just(numpy.float32(0.5)), st.dates(),
)  # fmt: skip
KEYS = st.one_of(st.text(), st.integers(), st.none(), st.tuples(st.integers(), st.text()))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(KEYS, inner),
        st.lists(st.floats()), st.lists(st.integers()).map(tuple),
        st.frozensets(st.integers(), max_size=1),
        inner.map(lambda value: [value, value, {"twice": value}]),
    ),
)  # fmt: skip


@pytest.mark.thorough
@hypothesis.given(st.lists(VALUES, max_size=5))
def test_any_nesting_of_data(values):
    """Whatever is nested in what comes back as it was, in the same order of keys."""
    with SharedList(values) as records:
        assert repr(values) == repr(list(records))


@pytest.mark.parametrize("length", [0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_any_length(length):
    """Every record of a list is found, around the edges of a block of the index too."""
    expected = [str(number) for number in range(length)]
    with SharedList(iter(expected)) as records:
        assert length == len(records)
        assert expected == list(records)
        assert expected[-1:] == [records[number] for number in range(length)][-1:]


@pytest.mark.parametrize("part", [
    slice(None), slice(3, 7), slice(None, None, -1), slice(8, 2, -3), slice(-4, None), slice(5, 5),
    slice(100, 200), slice(None, None, 4), slice(-100, 100),
])  # fmt: skip
def test_slices_are_lists_of_the_same_memory(part):
    """A slice, a slice of it, and their negative indices are those of a list; nothing is copied."""
    expected = list(range(10))
    with SharedList(expected) as records:
        found = records[part]

        assert isinstance(found, SharedList)
        assert expected[part] == list(found)
        assert expected[part][1:-1:2] == list(found[1:-1:2])
        assert expected[part][-1:] == [found[-1]][: len(found)] if len(found) else not list(found)
        assert found._file is records._file


def test_indices_are_those_of_lists():
    """Numbers of numpy and torch are indices; what lies beyond or is no number is refused."""
    with SharedList("abc") as records:
        assert ["a", "c", "b", "b"] == [
            records[numpy.int64(0)], records[-1], records[torch.tensor(1)], records[True],
        ]  # fmt: skip
        for index in (3, -4, 2**70, -(2**70)):
            with pytest.raises(IndexError, match=r"SharedList index out of range|cannot fit"):
                records[index]
        for index in ("a", 1.0, None):
            with pytest.raises(TypeError, match="indices must be integers or slices"):
                records[index]


def test_it_is_a_sequence():
    """`in`, index, count, reversed and unpacking work, and nothing can be changed."""
    with SharedList(["a", "b", "a"]) as records:
        assert isinstance(records, collections.abc.Sequence)
        assert "b" in records
        assert "z" not in records
        assert (1, 2) == (records.index("b"), records.count("a"))
        assert (2, 2) == (records.index("a", 1), records.index("a", -2, 9))
        with pytest.raises(ValueError):
            records.index("b", 2)
        assert ["a", "b", "a"] == [*reversed(records)]
        with pytest.raises(TypeError, match="does not support item assignment"):
            records[0] = "x"
        with pytest.raises(TypeError, match="support item deletion"):
            del records[0]


def test_it_compares_as_lists_do():
    """Record by record, with a list and with another one; it has no hash."""
    with SharedList([1, [2]]) as records, SharedList([1, [2]]) as others:
        assert records == [1, [2]]
        assert [1, [2]] == records
        assert records == others
        assert records == records[:]
        assert records != [1, [3]]
        assert records != [1]
        assert records != (1, [2])
        with pytest.raises(TypeError, match="unhashable"):
            hash(records)


def test_copies_share_the_memory():
    """copy, deepcopy, a slice and a list of it are views of the same file."""
    with SharedList([1, 2]) as records:
        for made in (copy.copy(records), copy.deepcopy(records), SharedList(records), records[:]):
            assert records._file is made._file
            assert [1, 2] == made
        deep = copy.deepcopy({"a": [records]})
        assert deep["a"][0]._file is records._file


def test_the_memory_is_sealed():
    """No process can write to it, by its descriptor or by a mapping."""
    with SharedList(["record"]) as records:
        descriptor = records._file.descriptor
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        wanted = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        assert wanted == seals & wanted
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 0)
        assert not os.get_inheritable(descriptor)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.complex128])
@pytest.mark.parametrize("length", [1, 3, 300, 100_000])
def test_leaves_are_aligned_to_their_items(dtype, length):
    """A leaf begins at a multiple of its item, a large one on a cache line."""
    leaf = torch.zeros(length, dtype=dtype)
    with SharedList([("x" * number, leaf, leaf.numpy()) for number in range(20)]) as records:
        unit = 64 if leaf.nbytes >= 1024 else leaf.itemsize
        for _, tensor, array in records:
            assert tensor.data_ptr() % unit == 0
            assert array.ctypes.data % unit == 0
        del tensor, array


def test_names_of_keys_are_stored_once():
    """A thousand dicts with long keys take little more than their values, and share the keys."""
    keys = [f"a_rather_long_name_{number}" for number in range(10)]
    with SharedList([dict.fromkeys(keys, 1)] * 1000) as records:
        assert records.nbytes < 1000 * 10 * 5 + 10_000
        assert all(a is b for a, b in zip(records[0], records[1], strict=True))


def test_more_names_than_are_kept():
    """Keys beyond the first few thousand, and long ones, stand in their records."""
    expected = [{f"key {number}": number, number: 1, "k" * 300: 2} for number in range(5000)]
    with SharedList(expected) as records:
        assert expected == list(records)


def test_a_generator_is_written_as_it_comes():
    """Records that come one by one are dropped as soon as they are written."""
    living = weakref.WeakSet()

    class Record:
        """Tells how many of it there are."""

        def __reduce__(self):
            return int, (5,)

    def records():
        for _ in range(3000):
            record = Record()
            living.add(record)
            assert len(living) < 5
            yield record
            del record

    with SharedList(records()) as made:
        assert [5] * 3000 == made


def test_other_ways_to_pickle_it_are_refused():
    """Outside of the start of a process the error says what to do."""
    with SharedList([1]) as records:
        for send in (pickle.dumps, lambda thing: SharedList([{"deep": [thing]}])):
            with pytest.raises(pickle.PicklingError, match=r"call to_file\(\)"):
                send(records)


def test_a_queue_gets_the_error():
    """Sending it through a queue fails where it is put; no thread of a sender is started."""
    with SharedList([1]) as records:
        line = multiprocessing.get_context("spawn").SimpleQueue()
        with pytest.raises(pickle.PicklingError, match="when that process is started"):
            line.put(records)
        line.close()


def test_a_forked_child_closes_nothing_of_its_parent(tmp_path):
    """A child that closed all descriptors reads on, and its end closes no file of its own."""
    with SharedList(["record"]) as records:

        def read_without_descriptors():
            os.closerange(3, 1000)  # also what tells more of a failure than the exit code
            own = [os.open(os.devnull, os.O_RDONLY) for _ in range(200)]
            assert ("record", None) == (records[0], records._file.descriptor)
            records.close()
            assert all(map(os.fstat, own))
            os._exit(0)

        Child(read_without_descriptors).end()
        assert "record" == records[0]


def test_lists_join_the_account(monkeypatch):
    """What lists keep is not offered to batches, until they are closed."""
    monkeypatch.setattr(limits, "total_bytes", lambda: 100_000_000)
    before, kept = default_ring_bytes(), account().kept_bytes
    with SharedList([b"x" * 10_000_000]) as records:
        assert kept + records.nbytes == account().kept_bytes
        assert before - records.nbytes // 2 - 1 <= default_ring_bytes() < before - 4_900_000
    assert (before, kept) == (default_ring_bytes(), account().kept_bytes)


def test_too_little_memory_is_an_error_with_numbers(monkeypatch):
    """Before memory runs out it says how much is left and what to do, and gives up what it has."""
    left = limits.Available(20_000_000, "on this machine")
    monkeypatch.setattr(limits, "available", lambda: left)
    text = r"20.0 MB are left to process \d+ on this machine.*pack\(\)"
    with pytest.raises(OutOfSharedMemory, match=text):
        SharedList(b"x" * 1_000_000 for _ in range(100))
    with SharedList([1, 2]) as records:
        assert [1, 2] == records


def test_an_error_that_is_kept_keeps_no_memory():
    """What was written before it is freed, though its traceback holds the frames."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LookupError) as kept:
        SharedList(b"x" * 1000 if number < 99 else {}[number] for number in range(100))

    assert kept.tb is not None
    assert before == len(os.listdir("/proc/self/fd"))


def test_a_limit_of_file_sizes_is_an_error(monkeypatch):
    """`ulimit -f` refuses in the same way as a full memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(OutOfSharedMemory, match="the kernel refuses more"):
            SharedList(b"x" * 100_000 for _ in range(100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_posix_backing(monkeypatch):
    """Where there is no memfd, a list lies in an object without a name."""
    monkeypatch.setenv("SHMLOADER_BACKING", "posix")
    before = os.listdir("/dev/shm")
    with SharedList([{"a": torch.ones(3)}]) as records:
        assert [1.0, 1.0, 1.0] == records[0]["a"].tolist()
        assert before == os.listdir("/dev/shm")


def test_read_only_where_the_kernel_counts_all(monkeypatch):
    """With `ulimit -d` below the list, leaves are copies that may be written to."""
    with SharedList([numpy.zeros(1000)] * 100) as records:
        descriptor = os.dup(records._file.descriptor)

    def write_to_a_copy():
        resource.setrlimit(resource.RLIMIT_DATA, (1, resource.RLIM_INFINITY))
        limited = SharedList.from_file(f"/proc/self/fd/{descriptor}")
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
        limited[5][0] = 1
        return float(limited[5][0])

    assert "0.0" == Child(write_to_a_copy).end()
    os.close(descriptor)
