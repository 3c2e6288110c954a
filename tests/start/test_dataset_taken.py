"""When workers take the dataset, as docs/draws.md says it, beside torch."""

import pytest
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from shmloader import DataLoader
from shmloader.trainer.taken import values_of


class Marked(Dataset):
    """Two samples, which are the mark as the worker has it."""

    def __init__(self):
        self.mark = 0

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.mark

    def load_state_dict(self, state):
        self.mark = state["mark"]


class Marking:
    """Indices, or batches of them; its `__iter__` changes the dataset."""

    def __init__(self, dataset, indices):
        self.dataset = dataset
        self.indices = indices

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        self.dataset.mark += 1
        return iter(self.indices)


class Yielding(Marking):
    """The same by a generator."""

    def __iter__(self):
        self.dataset.mark += 1
        yield from self.indices


def set_mark(loader, epoch):
    loader.dataset.mark = epoch


def load_mark(loader, epoch):
    loader.dataset.load_state_dict({"mark": epoch})


def seen(loader, options, before=None, after=None):
    """Return what two epochs of a kind of loader saw, with new and with persistent workers."""
    found = []
    for is_persistent in (False, True):
        dataset = Marked()
        given = {name: make(dataset) for name, make in options.items()}
        made = loader(dataset, num_workers=1, persistent_workers=is_persistent, **METHOD, **given)
        for epoch in (1, 2):
            if before is not None:
                before(made, epoch)
            iterator = iter(made)
            if after is not None:
                after(made, epoch)
            found.append({int(mark) for batch in iterator for mark in batch})
            del iterator
        getattr(made, "close", list)()
    return found


# Who changes it: options of the loader, before iter(), after it; what two epochs see of new workers
# and of persistent ones.
ROWS = {
    "`__iter__` of a batch sampler": (
        {"batch_sampler": lambda dataset: Marking(dataset, [[0], [1]])},
        *(None, None, [1, 3, 1, 1]),
    ),
    "its generator": (
        {"batch_sampler": lambda dataset: Yielding(dataset, [[0], [1]])},
        *(None, None, [0, 1, 0, 0]),
    ),
    "`__iter__` of a sampler": (
        {"sampler": lambda dataset: Marking(dataset, [0, 1])},
        *(None, None, [0, 1, 0, 0]),
    ),
    "the loop": ({}, set_mark, None, [1, 2, 1, 1]),
    "load_state_dict()": ({}, load_mark, None, [1, 2, 1, 1]),
    "after iter()": ({}, None, set_mark, [0, 1, 0, 0]),
}
METHOD = {"multiprocessing_context": "fork"}


@pytest.mark.core(first=1)
@pytest.mark.parametrize("row", ROWS)
def test_a_dataset_is_taken_as_by_torch(row):
    """Its workers see what it was when they were started, whatever changed it since."""
    *what, expected = ROWS[row]
    expected = [{mark} for mark in expected]

    assert expected == seen(TorchDataLoader, *what) == seen(DataLoader, *what)


@pytest.mark.thorough
def test_a_start_takes_the_dataset():
    """What changes between start() and iter() is not seen."""
    loader = DataLoader(Marked(), num_workers=1, **METHOD)
    loader.start()
    loader.dataset.mark = 1

    assert [0, 0] == [int(mark) for mark in loader]
    assert [1, 1] == [int(mark) for mark in loader]


def test_the_report_says_what_persistent_workers_do_not_see():
    """It names what has changed since they were started, and how it can be seen, until it is."""

    def told():
        return [line for line in loader.report().lines if "persistent workers" in line]

    loader = DataLoader(Marked(), num_workers=1, persistent_workers=True, **METHOD)
    list(loader)
    assert [] == told()
    loader.dataset.mark = 3
    list(loader)
    (line,) = told()
    assert "the dataset's mark (it was 0, and is 3) changed" in line
    assert "loader.close()" in line
    loader.close()
    list(loader)
    assert [] == told()
    loader.close()


class Refusing:
    """No code of this class may run."""

    def __init__(self, **attributes):
        object.__getattribute__(self, "__dict__").update(attributes)

    def refuse(self, *_):
        raise AssertionError("code of the dataset has run")

    __getattribute__ = __eq__ = __repr__ = __hash__ = refuse


class Number(int):
    """A number whose class is no plain one."""

    __repr__ = __eq__ = Refusing.refuse
    __hash__ = int.__hash__


class Hidden:
    """An object whose dictionary is not Python's."""

    __dict__ = property(Refusing.refuse)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: Refusing(
                flag=True,
                size=(3, 0.5),
                name="x",
                none=None,
                number=Number(),
                many=[1],
                nested=((1,),),
                long="x" * 1000,
                huge=1 << 9999,
                dataset=Refusing(flag=False),
            ),
            {"flag": "True", "size": "(3, 0.5)", "name": "'x'", "none": "None"}
            | {"dataset.flag": "False"},
        ),
        (Hidden, {}),
        (list, {}),
    ],
)
def test_only_small_plain_attributes_are_compared(make, expected):
    """They are found without any code of the dataset's, also in one that it wraps."""
    assert expected == values_of(make())
