"""Leaves and batches out of the ordinary: overlapping, given up, shared before, nested deeply."""

import sys
import traceback
import warnings

import numpy
import pytest
import torch
import torch.utils.data

from shmloader import DataLoader, UnsendableBatch
from shmloader.core import DEPTH_MAX, PackedRecord, unpack_record
from tests.conformance.made import Node, Pair, Record
from tests.helpers.datasets import Computed, deliver, identity
from tests.helpers.leaves.parts import are_same

LOADERS = [torch.utils.data.DataLoader, DataLoader]


class Marked(torch.Tensor):
    """A subclass."""


def quantised(tensor):
    with warnings.catch_warnings(action="ignore"):  # it is deprecated
        return torch.quantize_per_tensor(tensor, 0.5, 1, torch.quint8)


# Each shows little of a large base.
VIEWS = {
    "rows": lambda base: base[3:5],
    "a column": lambda base: base[:, 3],
    "every 60th row": lambda base: base[3::60],
    "a patch": lambda base: base.view(4, -1, 1000)[:, 5:45, 7:47],
    "a patch, transposed": lambda base: base[5:45, 7:47].t(),
    "two columns": lambda base: [base[:, 3], base[:, 4]],
    "two patches": lambda base: [base[5:45, 7:47], base[20:60, 80:120]],
    "in an object": lambda base: Node(tensor=base[:, 3]),
    "a subclass": lambda base: base[:, 3].as_subclass(Marked),
    "bfloat16": lambda base: base.bfloat16()[:, 3],
    "complex32": lambda base: base.view(torch.complex32)[:, 3],
    "float4": lambda base: base.view(torch.float4_e2m1fn_x2)[3],
    "bits8": lambda base: base.view(torch.bits8)[3],
    "quantised": lambda base: quantised(base)[:, 3],
    "conjugated": lambda base: base.view(torch.complex64)[:, 3].conj(),
    "negated": lambda base: base.view(torch.complex64).conj().imag[:, 3],
    "requires grad": lambda base: base[:, 3].requires_grad_(),
    "a parameter": lambda base: torch.nn.Parameter(base[:, 3]),
    "an array": lambda base: base.numpy()[:, 3],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("packs", [False, True], ids=["batch", "record"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_sent_without_its_base(forger, name, packs):
    """What is sent has at most twice the bytes of what the views show, beside what says so."""
    made = VIEWS[name](torch.arange(400_000.0).view(400, 1000))
    sent, again = there_and_back(forger, made, packs)
    views = [each.tensor if isinstance(each, Node) else each for each in listed(made)]

    assert sent <= 2 * sum(each.nbytes for each in views) + 8192
    if name in ("float4", "bits8"):  # of which torch can compare nothing
        made, again = made.view(torch.uint8), again.view(torch.uint8)
    assert are_same(values_of(made), values_of(again))


def listed(value):
    return value if isinstance(value, list) else [value]


def values_of(value):
    """Return what views are, and their numbers without strides, which are not always sent."""
    views = [each.tensor if isinstance(each, Node) else each for each in listed(value)]
    return [
        (type(view), getattr(view, "requires_grad", None), getattr(view, "is_conj", bool)(), plain)
        for view in views
        for plain in [torch.as_tensor(view).detach().resolve_conj().resolve_neg().contiguous()]
    ]


def there_and_back(forger, made, packs):
    """Send a batch or a record; returns how many bytes it had, and what came of it."""
    if packs:
        record = PackedRecord(made)
        return record.length, unpack_record(record.tobytes())
    slot = forger.write(made)
    return forger.answer(slot)["payload_bytes"], forger.read()


def test_lone_leaves_begin_with_a_cache_line(forger):
    """A leaf that shares no memory is aligned to 64 bytes, wherever it began."""
    raw = torch.zeros(4096, dtype=torch.uint8)
    forger.write([raw[1:100], raw[101:200], raw[203:204]])

    assert [0, 0, 0] == [made.data_ptr() % 64 for made in forger.read()]


def give_up(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


GIVEN_UP = {
    "tensor": lambda: give_up(torch.arange(6.0)),
    "view": lambda: [give_up(torch.arange(6).view(2, 3)[1:]), torch.ones(1)],
    "far view": lambda: give_up(torch.arange(1 << 21)[1 << 20 :][:5]),
    "half": lambda: {"a": give_up(torch.arange(6).to(torch.bfloat16))},
    "expanded": lambda: give_up(torch.ones(1).expand(4, 3)),
    "parameter": lambda: torch.nn.Parameter(give_up(torch.arange(6.0))),
    "in an object": lambda: Node(tensor=give_up(torch.arange(6.0))),
}


def shapes(value):
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.shape, value.stride()
    if isinstance(value, Node):
        return shapes(value.tensor)
    return [shapes(item) for item in (value.values() if isinstance(value, dict) else value)]


@pytest.mark.parametrize("name", GIVEN_UP)
def test_a_tensor_whose_storage_was_given_up_arrives(name):
    """A storage of no bytes under a tensor does not crash the worker; the values mean nothing."""
    expected = deliver(torch.utils.data.DataLoader, GIVEN_UP[name])
    delivered = deliver(DataLoader, GIVEN_UP[name])

    assert shapes(expected) == shapes(delivered)


def shrink():
    tensor = torch.zeros(60_000_000)
    tensor.untyped_storage().resize_(16)
    return tensor


@pytest.mark.thorough
@pytest.mark.parametrize("loader_class", LOADERS)
def test_a_tensor_beyond_its_storage_is_an_error(loader_class):
    """A storage that was made smaller under a tensor is an error, and no crash."""
    with pytest.raises((RuntimeError, UnsendableBatch), match="resize"):
        deliver(loader_class, shrink)


class Pool:
    """A dataset that reuses one tensor in shared memory for all its samples."""

    def __init__(self):
        self.tensor = torch.zeros(4).share_memory_()

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.tensor.fill_(index), Node(tensor=self.tensor)


def test_a_tensor_in_shared_memory_arrives_as_it_was_sent():
    """A batch is what it was when it was sent; with torch it is memory that the worker writes."""
    seen = []
    for loader_class in LOADERS:
        pool = Pool()
        loader = loader_class(
            pool, batch_size=None, num_workers=1, collate_fn=identity, prefetch_factor=1
        )
        held = list(loader)
        seen.append([made[0].item() for made, _ in held])
        assert all(node.tensor is made for made, node in held)
        held[0][0].fill_(99)
        is_shared = 99 == pool.tensor[0]
        assert is_shared == (loader_class is torch.utils.data.DataLoader)

    assert [5.0] * 6 == seen[0]
    assert list(range(6)) == seen[1]


# By the levels that one of each takes, of which an object's state is one.
AROUND = {
    "list": (1, lambda made: [made]),
    "tuple": (1, lambda made: (0, made)),
    "dict": (1, lambda made: {"inside": made}),
    "namedtuple": (2, lambda made: Pair(0, made)),
    "dataclass": (2, lambda made: Record(made)),
    "mixed": (4, lambda made: Record(({"inside": made},))),
}


def wrapped(kind, levels):
    """Put containers of a kind around a tensor, up to as many levels."""
    taken, wrap = AROUND[kind]
    made = torch.ones(1)
    for _ in range(levels // taken):
        made = wrap(made)
    return made


def kinds_in(batch):
    """List the types of what lies in each other, from the outside."""
    kinds = [type(batch)]
    while not isinstance(batch, torch.Tensor):
        if isinstance(batch, Record | dict):
            batch = batch.value if isinstance(batch, Record) else batch["inside"]
        else:
            batch = batch[-1]
        kinds.append(type(batch))
    return kinds


def first_and_second(make):
    """Return what comes of a batch, a value or an error, and the batch behind it."""
    dataset = Computed(2, lambda index: make() if index == 0 else "the next one")
    batches = iter(
        DataLoader(dataset, batch_size=None, num_workers=1, collate_fn=identity, timeout=30)
    )
    try:
        first = next(batches)
    except Exception as error:
        first = error
    return first, next(batches)


@pytest.mark.parametrize("kind", AROUND)
def test_batches_of_the_greatest_depth_arrive(kind):
    """A batch may have so many levels, and is read where Python's stack is nearly used up."""

    def next_from_the_depth(batches, depth):
        return next_from_the_depth(batches, depth - 1) if depth else next(batches)

    deepest = wrapped(kind, DEPTH_MAX)
    loader = DataLoader([deepest], batch_size=None, num_workers=1, collate_fn=identity, timeout=30)
    used = len(traceback.extract_stack())
    batch = next_from_the_depth(iter(loader), sys.getrecursionlimit() - used - 80)

    assert kinds_in(deepest) == kinds_in(batch)


@pytest.mark.core(every=3)
@pytest.mark.parametrize("levels", [DEPTH_MAX + 8, 5000, 100_000])
@pytest.mark.parametrize("kind", AROUND)
def test_a_batch_that_nests_too_deeply_is_an_error(kind, levels):
    """It is an error that names the depth, on a short path, and the next batch arrives."""
    error, after = first_and_second(lambda: wrapped(kind, levels))

    assert isinstance(error, UnsendableBatch)
    assert f"nested deeper than the {DEPTH_MAX} levels" in str(error)
    assert "..." in str(error)
    assert len(str(error)) < 2000
    assert "the next one" == after


# Python 3.14 pickles as deep as C's stack goes, which 20,000 levels do not use up.
@pytest.mark.parametrize("levels", [20_000, 100_000] if sys.version_info < (3, 14) else [100_000])
def test_an_object_that_nests_too_deeply_is_an_error(levels):
    """What is nested too deep for its pickle is an error that names the object."""
    error, after = first_and_second(lambda: {"x": Node(inside=wrapped("list", levels))})

    assert isinstance(error, UnsendableBatch)
    assert "batch['x'] (Node) cannot be sent" in str(error)
    assert ("recursion" if sys.version_info < (3, 14) else "tack overflow") in str(error)
    assert len(str(error)) < 2000
    assert "the next one" == after


def test_numbers_at_any_address_are_written(forger):
    """Numbers behind texts of any length are read as they were."""
    batch = [text for count in range(9) for text in ("x" * count, 1.5 + count, 2j, numpy.half(3))]
    forger.write(batch)

    assert batch == forger.read()
