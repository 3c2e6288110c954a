"""`share()` and `SharedDict`: what is replaced reads as before, and what cannot be is refused."""

import collections
import copy
import pickle
import re
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from shmloader import SharedDict, SharedList, share

MANY = 20_000


def paths(count=MANY):
    return [(f"/data/train/class/{number:08d}.jpg", number % 10) for number in range(count)]


class Folder(Dataset):
    """As torchvision's ImageFolder: two names for one list, and a list of targets."""

    def __init__(self, count=MANY):
        self.samples = self.imgs = paths(count)
        self.targets = [target for _, target in self.samples] * 5
        self.classes = [str(number) for number in range(10)]
        self.counts = collections.defaultdict(int, a=1)
        self.order = collections.OrderedDict(a=[1])
        self.size = collections.namedtuple("Size", "x y")(1, [2])
        self.tensor = torch.zeros(1_000_000)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index][1]


def test_what_is_named_is_replaced_in_its_places():
    """By all names that its object has for it; nothing else is."""
    dataset = Folder()
    expected = dataset.samples
    done = share(dataset, "samples")

    assert isinstance(dataset.samples, SharedList)
    assert dataset.imgs is dataset.samples
    assert expected == dataset.samples
    assert type(dataset.targets) is list
    assert (("samples", len(expected), dataset.samples.nbytes),) == done.replaced


class Wrapper(Dataset):
    """A dataset of a user's around another one."""

    def __init__(self, inner):
        self.inner = {"a": [inner]}


def test_paths_lead_through_attributes_keys_and_positions():
    """Into a Subset, a ConcatDataset, and a wrapper of the user's."""
    first, second = Folder(), Folder()
    dataset = Wrapper(ConcatDataset([Subset(first, list(range(100_000))), second]))
    share(dataset, "inner.a.0.datasets.0.dataset.samples", "inner.a.0.datasets.0.indices")

    assert isinstance(first.samples, SharedList)
    assert type(second.samples) is list
    assert isinstance(dataset.inner["a"][0].datasets[0].indices, SharedList)


class Coco:
    """Dicts of annotations by number, a defaultdict of lists, and lists in a small dict."""

    def __init__(self):
        rows = [{"id": n, "image": n // 3, "box": [1.0, 2.0, 3.0, n / 2]} for n in range(MANY)]
        self.dataset = {"info": {"year": 2017}, "annotations": rows}
        self.anns = {row["id"]: row for row in rows}
        self.by_image = collections.defaultdict(list)
        for row in rows:
            self.by_image[row["image"]].append(row)


@pytest.mark.thorough
def test_annotations_like_cocos():
    """Dicts become dicts, and a defaultdict makes what is missing."""
    dataset, before = SimpleNamespace(coco=Coco()), Coco()
    done = share(dataset, "coco.dataset.annotations", "coco.anns", "coco.by_image")

    assert 3 == len(done.replaced)
    assert before.dataset["annotations"] == dataset.coco.dataset["annotations"]
    assert before.anns == dict(dataset.coco.anns)
    assert before.by_image == dict(dataset.coco.by_image)
    assert [] == dataset.coco.by_image["missing"]
    assert {"year": 2017} == dataset.coco.dataset["info"]


def test_without_a_name_nothing_is_shared():
    """The error says how to name something."""
    with pytest.raises(ValueError, match=r'as in share\(dataset, "samples"\)'):
        share(Folder(1))


def test_a_list_that_is_named_twice_is_made_once():
    """Both places refer to one list afterwards, as before."""
    dataset = SimpleNamespace(coco=Coco())
    dataset.rows = dataset.coco.dataset["annotations"]
    share(dataset, "rows", "coco.dataset.annotations")

    assert dataset.rows is dataset.coco.dataset["annotations"]


class Special(list):
    """A list that may do more."""


@pytest.mark.parametrize(
    ("place", "error", "text"),
    [
        ("nothing", AttributeError, "there is no nothing: a Folder has no 'nothing'"),
        ("classes.10", AttributeError, "there is no classes.10: a list has no '10'"),
        ("samples.a.b", AttributeError, "there is no samples.a.b: a list has no 'a'"),
        ("tensor", TypeError, "tensor is a Tensor: share() replaces lists, dicts and defaultdicts"),
        ("special", TypeError, "special is a Special: share()"),
        ("order", TypeError, "order is a OrderedDict: share()"),
        ("size.1", TypeError, "size.1 is in a tuple"),
        ("pairs", TypeError, "the key (1, 2) is a tuple"),
    ],
)
def test_what_cannot_be_shared_is_refused(place, error, text):
    """The error names the place, and nothing is replaced, not even what could be."""
    dataset = Folder(1)
    dataset.special, dataset.pairs = Special([1]), {(1, 2): 1}
    with pytest.raises(error, match=re.escape(text)):
        share(dataset, "samples", place)

    assert type(dataset.samples) is list


MAPPINGS = [
    {},
    {1: "one"},
    {"a": 1, "": 2, "ü\udc80": 3, "1": 4},
    {-(2**200): 1, 0: 2, 2**64: 3, -1: 4, 2**61 - 2: 5},
    {**{number: str(number) for number in range(500)}, **{str(n): n for n in range(500)}},
    {number << 32: number for number in range(2000)},
]


@pytest.mark.parametrize("at", range(len(MAPPINGS)))
def test_a_dict_reads_as_it_was(at):
    """Every key leads to its value, in the same order; others are missing."""
    expected = MAPPINGS[at]
    found = SharedDict(expected)

    assert list(expected.items()) == list(found.items())
    assert list(expected) == list(found.keys())
    assert list(expected.values()) == list(found.values())
    assert all(expected[key] == found[key] for key in expected)
    assert expected == found
    assert len(expected) == len(found)
    for key in (12345678, "missing", None, (1, 2), 2.5, b"a"):
        assert key not in found
        assert "default" == found.get(key, "default")
        with pytest.raises(KeyError):
            found[key]


def test_keys_that_are_equal_are_found():
    """As in a dict: numbers of numpy, floats and bools; a list is refused."""
    found = SharedDict({1: "one", 3: "three", "k": "text"})

    assert ["one", "one", "three", "text"] == [
        found[True], found[numpy.int64(1)], found[3.0], found[numpy.str_("k")],
    ]  # fmt: skip
    with pytest.raises(TypeError, match="unhashable"):
        found[[1]]


def test_a_dict_with_other_keys_is_refused():
    """The error names the key."""
    with pytest.raises(TypeError, match=r"the key \(1, 2\) is a tuple"):
        SharedDict({(1, 2): 1})


def test_pairs_become_a_dict():
    """As with dict(); what is neither a mapping nor pairs is refused."""
    assert (
        {1: "a", "k": "b"} == SharedDict([(1, "a"), ("k", "b")]) == SharedDict({1: "a", "k": "b"})
    )
    for wrong in ([1, 2], [(1, 2, 3)], 5):
        with pytest.raises((TypeError, ValueError)) as refused:
            dict(wrong)
        with pytest.raises(refused.type, match=re.escape(str(refused.value))):
            SharedDict(wrong)


def test_what_cannot_be_pickled_is_counted():
    """The error has the number of the record as a note."""
    for make in (SharedList, lambda rows: SharedDict(dict(enumerate(rows)))):
        with pytest.raises(Exception, match="lambda") as caught:
            make([{"a": 1}, [2], {"b": lambda: None}])
        # Since Python 3.14 pickle tells in notes of its own what it was at.
        notes = [note for note in caught.value.__notes__ if not note.startswith("when serializing")]
        assert ["in record 2, counted from 0"] == notes


def test_a_factory_makes_what_is_missing():
    """As of a defaultdict, but nothing is kept."""
    found = SharedDict({1: [1]}, default_factory=list)
    found[5].append(1)

    assert ([], [1], 1) == (found[5], found[1], len(found))
    assert 5 not in found


def test_a_dict_is_copied_and_refused_as_a_list_is():
    """Copies share the memory, pickling says what to do, close ends it."""
    found = SharedDict({1: "one"})

    assert "one" == copy.deepcopy(found)[1]
    assert copy.copy(found)._records._file is found._records._file
    assert "<SharedDict of 1 keys, 0.0 MB>" == repr(found)
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(found)
    found.close()
    with pytest.raises(ValueError, match="closed"):
        found[1]
