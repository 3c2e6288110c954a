"""Values of every kind come out as they were made, and are the caller's own."""

import copy
import functools
import gc

import pytest
import torch

from tests.conformance import made, objects
from tests.conformance.sharing import arrays_in, as_array, drawing, picture
from tests.conformance.sources import get
from tests.helpers.copies import pickled
from tests.helpers.leaves import LEAVES
from tests.helpers.leaves.parts import are_same

pytestmark = [
    pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("error:.*fetches sample"),  # a cache keeps each of them
]
KEPT = 40  # more than there are slots of any kind


@pytest.fixture(autouse=True, scope="module")
def libraries_run():
    """Import what makes leaves once, before workers are forked."""
    for leaf in LEAVES.values():
        if not leaf.missing():
            leaf.make()


def make_of(name):
    missing = LEAVES[name].missing()
    if missing:
        pytest.skip(f"{missing} is not installed")
    return functools.partial(made.leaf, name)


@pytest.mark.core(values=1)
@pytest.mark.parametrize("name", LEAVES)
def test_each_leaf_arrives_as_it_was_made(kind, source, name):
    """Each leaf of the table of leaves is equal in types, strides and bits."""
    make = make_of(name)
    if name in kind.refuses:
        with pytest.raises(kind.refuses[name]):
            get(source, make)
    else:
        expected = make().as_subclass(torch.Tensor) if name in kind.unwraps else make()
        assert are_same(expected, get(source, make))


@pytest.mark.core(values=1)
@pytest.mark.parametrize("make", made.SHARING, ids=lambda make: make.__name__)
def test_memory_is_shared_as_the_standard_shares_it(kind, source, standard, make):
    """What is one object, shares memory or is apart, is as with torch or the standard class."""
    assert drawing(get(standard, make)) == drawing(get(source, make))


@pytest.mark.core(values=1)
@pytest.mark.parametrize("make", objects.REFERRING, ids=lambda make: make.__name__)
def test_objects_refer_as_the_standard_has_them(kind, source, standard, make):
    """Objects and texts that refer to each other, in any order and cycle, do so as with torch."""
    if (kind.name, make) == ("SharedList", objects.literal_keys):
        pytest.skip("keys lie once for all records, and are other objects than equal values")
    assert picture(get(standard, make), {}) == picture(get(source, make), {})


@pytest.mark.core(first=1)
def test_every_pair_of_leaves_arrives(kind, source):
    """Each leaf in an object, with each other one in it and beside it, is equal and one object."""
    makes = [functools.partial(objects.pair, *names) for names in objects.PAIRS]
    for names, came in zip(objects.PAIRS, source.many(makes), strict=True):
        assert objects.is_whole(names, came), names


@pytest.mark.parametrize("make", made.SHARING, ids=lambda make: make.__name__)
@pytest.mark.core(values=1)
def test_views_arrive_as_their_numbers(kind, source, make):
    """A view of something larger arrives with its own numbers."""
    sent, came = list(arrays_in(make())), list(arrays_in(get(source, make)))
    assert [as_array(each).tolist() for each in sent] == [as_array(each).tolist() for each in came]


def test_a_value_may_be_written(kind, source):
    """An array or tensor is written in place, and no other value changes."""
    makes = [functools.partial(made.numbered, index) for index in (1, 2, 3)]
    values = list(source.many(makes))
    for part in arrays_in(values[1]):
        part[:] = 9
    assert [True, False, True] == [
        made.is_numbered(value, index) for index, value in enumerate(values, 1)
    ]
    assert made.is_numbered(get(source, makes[1]), 2)


@pytest.mark.core(first=1)
def test_values_may_be_kept(kind, source):
    """Values that are kept stay as they were, however many there are."""
    makes = [functools.partial(made.numbered, index) for index in range(KEPT)]
    kept = {}
    for index, value in enumerate(source.many(makes)):
        kept[index] = value
        if index % 3 == 2:
            del kept[index - 1]
    del value
    gc.collect()
    assert all(made.is_numbered(value, index) for index, value in kept.items())
    assert KEPT - KEPT // 3 == len(kept)


def test_a_value_outlives_its_parts(kind, source):
    """A row of a value stays as it was when the value is gone."""
    rows = [
        value["tensor"][7:9]
        for value in source.many([functools.partial(made.numbered, each) for each in range(KEPT)])
    ]
    assert [[each] * 2 for each in range(KEPT)] == [row.tolist() for row in rows]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickled], ids=lambda way: way.__name__)
def test_a_value_may_be_copied(kind, source, way):
    """Copies and pickles of a value are equal, even when the value is gone."""
    value = get(source, functools.partial(made.numbered, 4))
    copied = way(value)
    del value
    get(source, functools.partial(made.numbered, 5))
    assert made.is_numbered(copied, 4)


def test_a_value_may_be_resized_and_trained_on(kind, source):
    """A tensor takes part in autograd, in a comparison and in an operation in place."""
    value = get(source, functools.partial(made.numbered, 3))["tensor"].float()
    value.requires_grad_()
    (value * 2).sum().backward()
    assert torch.equal(torch.full((5000,), 2.0), value.grad)
