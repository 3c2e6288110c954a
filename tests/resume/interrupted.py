"""Runs that are interrupted, saved, and gone on with by another loader; datasets that draw."""

import io
import itertools
import random
import warnings
from typing import NamedTuple

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import shmloader
from shmloader import DataLoader

COUNT, BATCH = 23, 3
BATCHES = -(-COUNT // BATCH)


class Run(NamedTuple):
    """How a loader is made: its dataset, and its options."""

    dataset: type
    options: dict


def drawn():
    """A draw of each global generator."""
    return [random.random(), numpy.random.rand(), torch.rand(()).item()]


class Drawing(Dataset):
    """Samples (4,) float64: the index, and draws."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.tensor([index, *drawn()], dtype=torch.float64)


class WithRng(Drawing):
    """Samples (3,) float64 whose draws are those of rng()."""

    def __getitem__(self, index):
        return torch.tensor([index, *shmloader.rng().random(2)], dtype=torch.float64)


def share():
    """The samples of this worker: an uneven part of them all."""
    info = get_worker_info()
    first, step = (0, 1) if info is None else (info.id, info.num_workers)
    return range(first * first, COUNT, step)


class Stream(IterableDataset):
    """Without a state; its order is drawn when it is begun, and each sample draws."""

    def __iter__(self):
        mine = list(share())
        random.shuffle(mine)
        for index in mine:
            yield torch.tensor([index, *drawn()], dtype=torch.float64)


class Places:
    """An iterator with a state."""

    def __init__(self, mine):
        self.mine, self.at = mine, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.mine):
            raise StopIteration
        self.at += 1
        return torch.tensor([self.mine[self.at - 1], *drawn()], dtype=torch.float64)

    def state_dict(self):
        return {"mine": self.mine, "at": self.at}

    def load_state_dict(self, state):
        self.mine, self.at = list(state["mine"]), state["at"]


class Placed(IterableDataset):
    """Its iterator has a state."""

    def __iter__(self):
        mine = list(share())
        random.shuffle(mine)
        return Places(mine)


class Counting(IterableDataset):
    """A generator over a dataset with a state, which is back at 0 when it has ended."""

    def __init__(self):
        self.at, self.skipped, self.epoch = 0, 0, 0

    def __iter__(self):
        mine = list(share())
        self.at, self.skipped = self.skipped, 0
        while self.at < len(mine):
            self.at += 1
            yield torch.tensor([mine[self.at - 1], self.epoch, *drawn()], dtype=torch.float64)
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.skipped, self.epoch = state["at"], state["epoch"]


class Sized(Counting):
    """One that says how long it is, as frameworks ask."""

    def __len__(self):
        return COUNT


def generator_of(seed=7):
    """A generator that a loader is given."""
    return torch.Generator().manual_seed(seed)


def opened(dataset, options):
    """Make a loader whose order is the same each time."""
    settings = {"batch_size": BATCH, "generator": generator_of(), "seed_by": "batch", **options}
    if not isinstance(dataset, IterableDataset) and "sampler" not in settings:
        settings.setdefault("shuffle", True)
    if settings.get("batch_sampler") is not None:
        settings["batch_size"] = 1
        settings.pop("shuffle", None)
    return DataLoader(dataset, **settings)


def stored(state):
    """The state as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def disturb(number):
    """Leave the generators as another process would have them."""
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def plain(batch):
    """A batch as what can be compared."""
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def undisturbed(run, epochs=2):
    """All batches of some epochs."""
    disturb(0)
    with quiet(), opened(run.dataset(), run.options) as loader:
        return [plain(batch) for _ in range(epochs) for batch in loader]


def resumed(run, again, position, epochs=2, save=stored):
    """
    Interrupt a run after so many batches, go on with another loader, and return all batches.

    Args:
        again: How the other loader is made.
        position: Counted over the epochs.
    """
    disturb(0)
    with quiet(), opened(run.dataset(), run.options) as loader:
        done, begun, state = _until(loader, position)
    disturb(position + 1)
    with quiet(), opened(again.dataset(), again.options) as loader:
        loader.load_state_dict(save(state))
        done += [plain(batch) for batch in begun_aside(loader)]
        for _ in range(epochs - begun):
            done += [plain(batch) for batch in loader]
    return done


def resumed_often(runs, every, epochs=2):
    """Go on with one run after the other, each for so many batches, and return all batches."""
    done, state, left = [], None, epochs
    for number, run in enumerate(itertools.cycle(runs)):
        disturb(number)
        with quiet(), opened(run.dataset(), run.options) as loader:
            if state is not None:
                loader.load_state_dict(stored(state))
            for batch in itertools.islice(loader, every):
                done.append(plain(batch))
            state = loader.state_dict()
        left -= state["_iterator_finished"]
        if left == 0:
            return done
    raise AssertionError("runs come in a circle")


def left(loader, position=1):
    """Interrupt a loader after so many batches, and close it: its state, and the rest."""
    with quiet(), loader:
        iterator = iter(loader)
        for _ in range(position):
            next(iterator)
        state = loader.state_dict()
        return state, [plain(batch) for batch in iterator]


def gone_on(loader, state):
    """The batches with which a loader goes on from a state, which closes it."""
    with quiet(), loader:
        loader.load_state_dict(stored(state))
        return [plain(batch) for batch in begun_aside(loader)]


def begun_aside(loader):
    """Begin a resumed epoch, which leaves torch's default generator as it was."""
    before = torch.get_rng_state()
    iterator = iter(loader)
    assert torch.equal(before, torch.get_rng_state())
    return iterator


def _until(loader, position):
    """Iterate until a position: the batches, how many epochs were begun, and the state there."""
    done, begun = [], 0
    while True:
        begun += 1
        iterator = iter(loader)
        if len(done) == position:
            return done, begun, loader.state_dict()
        for batch in iterator:
            done.append(plain(batch))
            if len(done) == position:
                return done, begun, loader.state_dict()


def quiet():
    """Without warnings, which the tests of those look at."""
    return warnings.catch_warnings(action="ignore")
