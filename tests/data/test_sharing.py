"""`share()` and `SharedDict`: what is replaced reads as before, and what cannot be is named."""

import collections
import copy
import logging
import pickle
import random
import types

import numpy
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from shmloader import DataLoader, SharedDict, SharedList, share
from shmloader.data.mutations import changed_while_read

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


def test_lists_are_replaced_in_their_places():
    """Large ones, one for two names of it; small ones and tensors stay."""
    dataset = Folder()
    expected = dataset.samples
    done = share(dataset)

    assert isinstance(dataset.samples, SharedList)
    assert dataset.imgs is dataset.samples
    assert expected == dataset.samples
    assert isinstance(dataset.targets, SharedList)
    assert type(dataset.classes) is list
    assert ["dataset.samples", "dataset.targets"] == [each.place for each in done.replaced]
    assert (len(expected), dataset.samples.nbytes) == done.replaced[0][1:]
    assert () == done.left


def test_one_line_says_what_was_done(caplog):
    """The logger gets the line that str() gives."""
    with caplog.at_level(logging.DEBUG, "shmloader"):
        done = share(Folder())
    lines = [record.getMessage() for record in caplog.records]

    assert str(done) in lines
    assert "\n" not in str(done)
    assert str(done).startswith(f"shared dataset.samples ({MANY} records, ")
    assert "nothing to share" == str(share(Folder(10)))


def test_wrapped_datasets_are_found():
    """In a Subset, a ConcatDataset, and a wrapper of the user's."""

    class Wrapper(Dataset):
        def __init__(self, inner):
            self.inner = {"a": [inner]}

    first, second = Folder(), Folder()
    dataset = Wrapper(ConcatDataset([Subset(first, list(range(100_000))), second]))
    done = share(dataset)

    assert isinstance(first.samples, SharedList)
    assert isinstance(second.samples, SharedList)
    assert isinstance(dataset.inner["a"][0].datasets[0].indices, SharedList)
    places = [each.place for each in done.replaced]
    assert "dataset.inner['a'][0].datasets[0].dataset.samples" in places
    assert "dataset.inner['a'][0].datasets[0].indices" in places


def test_annotations_like_cocos():
    """Dicts of annotations by number, a defaultdict of lists, and lists in a small dict."""

    class Coco:
        def __init__(self):
            rows = [{"id": n, "image": n // 3, "box": [1.0, 2.0, 3.0, n / 2]} for n in range(MANY)]
            self.dataset = {"info": {"year": 2017}, "annotations": rows}
            self.anns = {row["id"]: row for row in rows}
            self.by_image = collections.defaultdict(list)
            for row in rows:
                self.by_image[row["image"]].append(row)

    class Detection(Dataset):
        def __init__(self):
            self.coco = Coco()

    dataset, before = Detection(), Coco()
    done = share(dataset)

    assert 3 == len(done.replaced)
    assert before.dataset["annotations"] == dataset.coco.dataset["annotations"]
    assert before.anns == dict(dataset.coco.anns)
    assert before.by_image == dict(dataset.coco.by_image)
    assert [] == dataset.coco.by_image["missing"]
    assert {"year": 2017} == dataset.coco.dataset["info"]


class Cached(Folder):
    """Changes its lists while it is read."""

    def __init__(self):
        super().__init__()
        self.cache = [None, "a rather long text"] * MANY
        self.seen = paths()
        self.kept = paths()

    def __getitem__(self, index):
        self.cache[index] = self.samples[index]
        self.note(index)
        return self.cache[index][1] + len(self.kept)

    def note(self, index):
        self.seen.append(index)

    def load(self):
        self.kept.append(1)


def test_what_the_dataset_changes_is_left():
    """By assignment or by a method, in what fetching calls; no other method counts."""
    dataset = Cached()
    done = share(dataset)

    assert {"cache": "__getitem__", "seen": "note"} == changed_while_read(Cached)
    assert type(dataset.cache) is list
    assert type(dataset.seen) is list
    assert isinstance(dataset.kept, SharedList)
    assert {
        ("dataset.cache", "Cached.__getitem__ changes it"),
        ("dataset.seen", "Cached.note changes it"),
    } == set(done.left)
    assert "; left dataset.cache (Cached.__getitem__ changes it)" in str(done)


class Changing(Dataset):
    """Changes records through names of its own, each list in one way."""

    def __init__(self):
        for name in "abcdefghijklmnopq":
            setattr(self, name, [{"k": 0, "in": [0]}])

    def __getitem__(this, index):
        row = this.a[index]
        row["k"] += 1
        rows = this.b
        rows[index] = row
        first, *rest = this.c[index]["in"], 1
        first.append(1)
        for number, each in enumerate(this.d):
            each["k"] = number
        del this.e[index].get("in")[0]
        if (taken := this.f[index]) and index:
            taken["k"] = 1
        shallow = dict(this.g[index])
        shallow["in"].append(1)
        held = []
        held.append(this.h[index])
        held[0]["k"] = 1
        this.mend(1, row=this.i[index])
        this.row(index)["k"] = 1
        perhaps = this.k[index]
        if index:
            perhaps = dict(perhaps)
        perhaps["k"] = 1
        random.shuffle(this.l)
        parts = this.m[index]["in"]
        parts += rest
        both = {"a": this.n[index], "b": 1}
        both["a"]["k"] = 1
        [each.update(k=1) for each in this.o]
        this.current = this.p[index]
        return this.q[index]

    def __next__(self):
        self.current["k"] = 1

    def __iter__(self):
        while self:
            record = next(iter(self.q))
            record["k"] = 1
            yield record

    def mend(self, by, row):
        row["k"] = by

    def row(self, index):
        return self.j[index]


class Unchanging(Dataset):
    """Changes only what it made."""

    def __getitem__(self, index):
        row = dict(self.a[index])
        row["k"] = 1
        other = self.b[index]
        other = copy.deepcopy(other)
        other["k"] = 1
        sample = {**self.c[index], "more": 1}
        sample["k"] = 1
        part = self.d[index : index + 2]
        part.append(1)
        path, label = self.e[index]
        label += 1
        path += f"{label}"
        words = self.f[index].split()
        words[0] = path
        batch = [each for each in self.g if each]
        batch[0] = sample
        text = self.h[index].copy()
        text.update(row)
        found = self.i.get(index, {})
        return found, other, self.j[index]


def test_records_are_changed_through_other_names():
    """Through a local name, a part, a loop, a method, whatever self is called."""
    names = set("abcdefghijklmnopq")
    of_a_lambda = type("Keeping", (), {"__getitem__": lambda me, at: me.kept.setdefault(at, 1)})

    assert {"kept": "__getitem__"} == changed_while_read(of_a_lambda)
    assert names | {"current"} == changed_while_read(Changing).keys()
    assert {} == changed_while_read(Unchanging)


def test_a_list_whose_records_are_changed_reads_as_before():
    """It stays a list, and is named; so does one in a small dict."""

    class Counting(Dataset):
        def __init__(self):
            self.rows = [{"k": 0, "text": "x" * 40} for _ in range(MANY)]
            self.tables = {"rows": [{"k": 0, "text": "y" * 40} for _ in range(MANY)]}

        def __getitem__(self, index):
            row, other = self.rows[index], self.tables["rows"][index]
            row["k"] += 1
            other["k"] += 2
            return row["k"] + other["k"]

    dataset = Counting()
    done = share(dataset)

    assert [3, 6] == [dataset[5], dataset[5]]
    assert ["dataset.rows", "dataset.tables['rows']"] == [each.place for each in done.left]
    assert {"Counting.__getitem__ changes it"} == {each.reason for each in done.left}


class Marking(Dataset):
    """Counts how often each of its records is read."""

    def __init__(self):
        self.rows = [{"k": 0, "text": "x" * 400} for _ in range(MANY // 5)]

    def __getitem__(self, index):
        row = self.rows[index]
        row["k"] += 1
        return row

    def mark(self, index):
        self.rows[index]["k"] += 1


class BySuper(Marking):
    def __getitem__(self, index):
        return super().__getitem__(index)["k"]


class BySuperElsewhere(Marking):
    def __getitem__(self, index):
        super().mark(index)
        return self.rows[index]["k"]


class ByBase(Marking):
    def __getitem__(self, index):
        Marking.mark(self, index)
        return self.rows[index]["k"]


class ByResult(Unchanging):
    def __init__(self):
        self.rows = [{"k": 0, "text": "x" * 400} for _ in range(MANY // 5)]

    def find(self, index):
        return self.rows[index]

    def __getitem__(self, index):
        ByResult.find(self, index)["k"] += 1
        return self.rows[index]["k"]


class ByGetattr(Marking):
    def __getitem__(self, index):
        row = getattr(self, "rows")[index]  # noqa: B009
        row["k"] += 1
        return self.rows[index]["k"]


class ByMatch(Marking):
    def __getitem__(self, index):
        match self.rows[index]:
            case {"text": _} as row:
                row["k"] += 1
        return self.rows[index]["k"]


class ByOtherName(Marking):
    def __init__(self):
        super().__init__()
        self.same = self.rows

    def __getitem__(self, index):
        self.same[index]["k"] += 1
        return self.rows[index]["k"]


class ByTable(Marking):
    def __init__(self):
        super().__init__()
        self.table = dict(enumerate(self.rows))

    def __getitem__(self, index):
        self.table[index]["k"] += 1
        return self.rows[index]["k"]


@pytest.mark.parametrize(
    "kind",
    [BySuper, BySuperElsewhere, ByBase, ByResult, ByGetattr, ByMatch, ByOtherName, ByTable],
)
def test_changes_by_base_classes_and_through_other_attributes(kind):
    """The records stay what is changed, wherever they lie, in the order of the attributes too."""
    dataset = kind()
    done = share(dataset)

    assert () == done.replaced
    assert "dataset.rows" in [each.place for each in done.left]
    assert [1, 2, 3] == [dataset[5] for _ in range(3)]


class Special(list):
    """A list that may do more."""


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Special(paths()), "a Special may do more than a list"),
        (collections.OrderedDict(paths()), "a OrderedDict may do more than a dict"),
        ([object() for _ in range(MANY * 5)], "it holds objects of type object"),
        ([[object()] for _ in range(MANY)], "it holds objects of type object"),
        (
            {(number, 1): "a" for number in range(MANY)},
            "its keys are of type tuple, not int or str",
        ),
        (numpy.array([str(number) for number in range(MANY * 10)], object), "make it a list first"),
    ],
)
def test_what_cannot_be_replaced_is_named(value, reason):
    """With its place and the reason, and it stays what it was."""
    dataset = Folder(1)
    dataset.thing = value
    done = share(dataset)

    assert dataset.thing is value
    assert ["dataset.thing"] == [each.place for each in done.left]
    assert reason in done.left[0].reason


def test_loops_and_modules_are_walked_once():
    """A dataset that refers to itself ends, and tools are not looked into."""
    dataset = Folder()
    dataset.me = dataset
    dataset.module = torch.nn.Linear(2, 2)
    dataset.module.list = paths()
    dataset.log = logging.getLogger("tests.sharing")
    dataset.log.words = paths()
    dataset.settings = types.SimpleNamespace(rows=paths())
    share(dataset)

    assert type(dataset.module.list) is list
    assert type(dataset.log.words) is list
    assert isinstance(dataset.settings.rows, SharedList)
    del dataset.log.words
    assert isinstance(dataset.samples, SharedList)


def test_a_list_itself_is_refused():
    """There is no place to put another one into: the error says what to do."""
    with pytest.raises(TypeError, match="give SharedList a list itself"):
        share(paths())


def test_batches_are_the_same():
    """A loader over the shared dataset has the batches of the one before."""
    expected = list(torch.utils.data.DataLoader(Folder(2000), 100))
    dataset = Folder(2000)
    share(dataset, min_bytes=1)
    with DataLoader(dataset, 100, num_workers=2) as loader:
        assert all(torch.equal(*pair) for pair in zip(expected, loader, strict=True))


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
        with pytest.raises(TypeError, match="a mapping, or of pairs of a key and a value, not of"):
            SharedDict(wrong)


def test_what_cannot_be_pickled_is_counted():
    """The error has the number of the record as a note."""
    for make in (SharedList, lambda rows: SharedDict(dict(enumerate(rows)))):
        with pytest.raises(Exception, match="lambda") as caught:
            make([{"a": 1}, [2], {"b": lambda: None}])
        assert ["in record 2, counted from 0"] == caught.value.__notes__


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
