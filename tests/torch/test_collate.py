"""The worker's collate functions on a desk that hands out ordinary memory, or none."""

import collections

import numpy
import pytest
import torch
from torch.utils.data._utils import collate as torchs

import shmloader
from shmloader.worker import collate
from tests.helpers.forgery import Forger
from tests.torch.golden.outcomes import Failure, attempt


class Desk:
    """
    A desk that notes all calls.

    Args:
        has_room: If True, it makes tensors; otherwise it answers None to every call.
    """

    def __init__(self, has_room=True, hands_out=True):
        self.hands_out = self.walks = hands_out
        self.asked = []
        self.left = self.kept = 0
        self._has_room = has_room

    def empty(self, sizes, dtype):
        self.asked.append((sizes, dtype))
        return torch.zeros(sizes, dtype=dtype) if self._has_room else None

    def collate(self, batch, functions, otherwise):
        self.asked.append("collate")
        return otherwise(batch, collate_fn_map=functions)

    def leave_slot(self):
        self.left += 1

    def keep_slot(self):
        self.kept += 1


@pytest.fixture
def seated(monkeypatch):
    """Returns a function that gives a desk to the module, as install() does in a worker."""

    def sit(desk):
        monkeypatch.setattr(collate, "_desk", desk)
        return desk

    return sit


@pytest.fixture
def forger():
    """A real desk that has an order in hand."""
    forger = Forger()
    forger.ledger.place(0, 0, [0])
    forger.desk.take(1.0)
    yield forger
    forger.close()


SIZES = [
    (3, (3,)),
    ([2, 3], (2, 3)),
    ((), ()),
    ((0, 4), (0, 4)),
    (range(2, 4), (2, 3)),
    (torch.Size([2, 3]), (2, 3)),
    (numpy.int64(3), (3,)),
    (numpy.array(3), (3,)),
    (numpy.array([2, 3]), (2, 3)),
    ((2, numpy.uint8(3)), (2, 3)),
    (torch.tensor(3), (3,)),
    (torch.tensor([2, 3]), (2, 3)),
]


@pytest.mark.parametrize(("shape", "sizes"), SIZES, ids=str)
@pytest.mark.parametrize("dtype", [None, torch.int64, torch.bool])
@pytest.mark.parametrize("desk", [None, Desk(), Desk(has_room=False), Desk(hands_out=False)])
def test_empty_has_the_shape_and_dtype_asked_for(seated, desk, shape, sizes, dtype):
    """empty() makes the same kind of tensor in a slot, beside it, and outside of a worker."""
    seated(desk)
    made = shmloader.empty(shape, dtype)

    assert (sizes, dtype or torch.get_default_dtype()) == (tuple(made.shape), made.dtype)
    assert made.is_contiguous()


NO_SIZES = [
    3.0,
    (3.0,),
    None,
    True,
    -1,
    (2, -1),
    numpy.int64(-1),
    ((2, 3),),
    1 << 62,
    1 << 63,
    (1 << 40, 1 << 40),
]


@pytest.mark.core(every=3)
@pytest.mark.parametrize("shape", NO_SIZES, ids=str)
@pytest.mark.parametrize("place", ["a slot", "elsewhere"])
def test_empty_refuses_the_sizes_that_torch_refuses(seated, forger, place, shape):
    """empty() ends in the error of torch.empty for sizes that are none, in a slot and elsewhere."""
    expected = attempt(lambda: torch.empty(shape))
    seated(forger.desk if place == "a slot" else None)

    assert isinstance(expected, Failure)
    assert expected == attempt(lambda: shmloader.empty(shape))


@pytest.mark.parametrize("container", [iter, collections.UserList])
def test_only_lists_and_tuples_are_stacked(seated, forger, container):
    """A container that may be read once, or is the user's own, is left to torch whole."""
    samples = [torch.ones(3), torch.zeros(3)]
    functions = torchs.default_collate_fn_map
    expected = attempt(lambda: torchs.collate(container(samples), collate_fn_map=functions))
    seated(forger.desk)

    assert expected == attempt(
        lambda: collate._collate(container(samples), collate_fn_map=functions)
    )


def test_arrays_pass_a_users_function_for_tensors(seated, monkeypatch):
    """An ndarray is not gathered natively while the user has a function for tensors in the map."""
    desk = seated(Desk())
    shown = []
    monkeypatch.setitem(
        torchs.default_collate_fn_map,
        torch.Tensor,
        lambda batch, *, collate_fn_map=None: shown.extend(batch),
    )
    collate._collate(
        [numpy.arange(3), numpy.arange(3) + 3], collate_fn_map=torchs.default_collate_fn_map
    )

    assert ([], 2) == (desk.asked, len(shown))


@pytest.mark.parametrize(
    ("kind", "is_walked"), [(slice, True), (int, False), (list, False), (object, False)]
)
def test_a_map_is_walked_if_it_has_torchs_functions(seated, kind, is_walked):
    """Users' entries for other types do not count; one for what is covered leaves all to torch."""
    desk = seated(Desk())
    functions = torchs.default_collate_fn_map | {kind: lambda batch, *, collate_fn_map: batch}
    collate._collate([1, 2], collate_fn_map=functions)

    assert (["collate"] if is_walked else []) == desk.asked
