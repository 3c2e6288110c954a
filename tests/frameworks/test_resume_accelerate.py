"""Accelerate's prepared loaders fetch one batch ahead; the place of the loop is exact still."""

from __future__ import annotations

import itertools
import signal

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import shmloader

from .needs import needs
from .training import Net, Pictures, Stopping, Stream, picture, seed
from .ways import BY_BATCH, WRAP

accelerate = needs("accelerate")

from .accelerate_loops import forget, fresh_state  # noqa: E402, F401

COUNT, BATCH, EPOCHS = 36, 8, 3  # the last batch of an epoch is smaller
STEPS = -(-COUNT // BATCH)
WAYS = [(WRAP, 0), (WRAP, 2), (BY_BATCH, 2)]


class Place:
    """What docs/resume.md says to register: the place of the loop over a loader."""

    def __init__(self, loader):
        self.loader = loader

    def state_dict(self):
        return shmloader.state_dict(self.loader)

    def load_state_dict(self, state):
        shmloader.load_state_dict(self.loader, state)


class Places(IterableDataset):
    """Numbers, from an iterator that has a state."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        return Numbers(info.id if info else 0, info.num_workers if info else 1, self.count)


class Numbers:
    def __init__(self, first, step, count):
        self.at, self.step, self.count = first, step, count

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= self.count:
            raise StopIteration
        self.at += self.step
        return picture(self.at), self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def accelerator(**options):
    forget()
    return accelerate.Accelerator(
        cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(**options)
    )


def prepared(boss, way, workers, dataset=None, shuffle=True, **options):
    """Prepare a loader, and have it served."""
    dataset = Pictures(COUNT) if dataset is None else dataset
    more = {"shuffle": shuffle} if shuffle else {}
    loader = torch.utils.data.DataLoader(dataset, BATCH, num_workers=workers, **more)
    made = boss.prepare(loader)
    if way is WRAP:
        made.base_dataloader = shmloader.wrap(made.base_dataloader, seed_by="batch", **options)
    return made


def told(batch):
    """What is compared of a batch, and a draw of the training's own."""
    torch.rand(1)
    return [each.tolist() for each in batch]


def whole(loader):
    """Train for all epochs. Returns the batches, and what would be saved after each step."""
    batches, saved = [], []

    def save():
        saved.append((len(batches), shmloader.state_dict(loader), torch.get_rng_state()))

    save()
    for _ in range(EPOCHS):
        for batch in loader:
            batches.append(told(batch))
            save()
        save()  # between two epochs
    return batches, saved


def rest(loader, count):
    """Train until there are so many batches more."""
    batches = []
    while len(batches) < count:
        batches += [told(batch) for batch in loader]
    return batches


@pytest.mark.parametrize("seedable", [False, True], ids=["torch's sampler", "seedable sampler"])
@pytest.mark.parametrize(("way", "workers"), WAYS, ids=str)
def test_every_step(way, workers, seedable):
    """A state that is saved at any step, or between, is followed by what would have come."""
    with way.active():
        seed()
        boss = accelerator(use_seedable_sampler=seedable)
        batches, saved = whole(prepared(boss, way, workers))
        assert EPOCHS * STEPS == len(batches)
        for done, state, generator in saved:
            torch.manual_seed(20)  # a new process has the same seed
            loader = prepared(accelerator(use_seedable_sampler=seedable), way, workers)
            torch.set_rng_state(generator)
            shmloader.load_state_dict(loader, state)
            assert state == shmloader.state_dict(loader)
            assert batches[done:] == rest(loader, len(batches) - done), done


@pytest.mark.parametrize("kind", [Stream, Places])
def test_iterable(kind):
    """An iterable dataset, which Accelerate's dispatcher reads, goes on where the loop was."""

    def make():
        dataset = kind(COUNT)
        return prepared(accelerator(), WRAP, 2, dataset, shuffle=False, resumable=True)

    seed()
    batches, saved = whole(make())
    for done, state, generator in saved:
        torch.set_rng_state(generator)
        loader = make()
        shmloader.load_state_dict(loader, state)
        assert batches[done:] == rest(loader, len(batches) - done), done


def test_a_dataset_that_has_gone_on_is_refused():
    """Without workers the dataset itself is asked, and it is a batch further."""
    loader = prepared(accelerator(), WRAP, 0, Places(COUNT), shuffle=False)
    shmloader.state_dict(loader)
    running = iter(loader)
    next(running)

    with pytest.raises(ValueError, match="num_workers=1"):
        shmloader.state_dict(loader)
    assert STEPS - 1 == len(list(running))
    assert "end" == shmloader.state_dict(loader)["at"]


def test_a_loop_that_was_broken_off():
    """The batch that was fetched ahead comes again, after break, an interrupt or an error."""
    loader = prepared(accelerator(), WRAP, 2)
    for _ in itertools.islice(loader, 2):
        pass

    assert 2 == shmloader.state_dict(loader)["drawn"]
    assert 3 == shmloader.state_dict(loader.base_dataloader)["drawn"]

    broken = prepared(accelerator(), WRAP, 0, Broken(COUNT), shuffle=False)
    seen = []
    with pytest.raises(KeyboardInterrupt):
        for batch in broken:
            seen.append(batch)
    assert len(seen) == shmloader.state_dict(broken)["drawn"] == 1


class Broken(Pictures):
    """Ctrl-C comes while the third batch is fetched."""

    def __getitem__(self, index):
        if index == 2 * BATCH:
            raise KeyboardInterrupt
        return super().__getitem__(index)


def test_dispatcher_for_several_ranks_is_refused():
    """Rank 0 fetches for all, so a rank's loader is not where the loop is."""
    boss = accelerator(dispatch_batches=True)
    loader = prepared(boss, WRAP, 2)
    assert 0 == shmloader.state_dict(loader)["drawn"]
    state = shmloader.state_dict(loader)
    loader.state.__dict__["num_processes"] = 2

    with pytest.raises(TypeError, match="dispatch_batches=False"):
        shmloader.state_dict(loader)
    with pytest.raises(TypeError, match="dispatch_batches=False"):
        shmloader.load_state_dict(loader, state)


def test_two_prepared_loaders():
    """Each of the loaders that one Accelerator knows has a place of its own."""
    boss = accelerator()
    first, second = prepared(boss, WRAP, 0), prepared(boss, WRAP, 0)
    running = iter(first), iter(second), iter(second)
    for each in running:
        next(each)
    next(running[2])

    assert 1 == shmloader.state_dict(first)["drawn"]
    assert 2 == shmloader.state_dict(second)["drawn"]


def test_a_stateful_loader_stays_torchdatas():
    """With use_stateful_dataloader its state is its own, and ours is refused."""
    needs("torchdata")
    boss = accelerator(use_stateful_dataloader=True)
    with BY_BATCH.active():
        loader = prepared(boss, BY_BATCH, 2)
        with pytest.raises(TypeError, match="its own iterators"):
            shmloader.state_dict(loader)
    with pytest.raises(TypeError, match="would bypass the iterators"):
        prepared(boss, WRAP, 2)


@pytest.mark.parametrize("saved_at", [STEPS + 2, 2 * STEPS - 1, 2 * STEPS], ids=str)
@pytest.mark.parametrize("registered", [Place, lambda loader: loader], ids=["place", "loader"])
@pytest.mark.parametrize(("way", "workers"), WAYS, ids=str)
def test_save_state(tmp_path, way, workers, registered, saved_at):
    """save_state() and load_state() carry the place, and the weights are those of a whole run."""
    if way is BY_BATCH and registered is not Place:
        pytest.skip("a loader that install() serves gets no methods")

    def make():
        boss = accelerator()
        loader = prepared(boss, way, workers)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net, optimizer = boss.prepare(net, optimizer)
        boss.register_for_checkpointing(registered(loader))
        return boss, loader, net, optimizer

    def train(boss, loader, net, optimizer, first):
        step = first
        while step < EPOCHS * STEPS:
            for batch in loader:
                loss = net.loss(batch) * torch.rand(1)  # the step draws too
                optimizer.zero_grad()
                boss.backward(loss)
                optimizer.step()
                step += 1
                if first == 0 and step == saved_at:
                    boss.save_state(tmp_path / "saved")
        return [each.detach().clone() for each in net.parameters()]

    with way.active():
        seed()
        expected = train(*make(), first=0)
        torch.manual_seed(77)
        boss, *others = make()
        boss.load_state(tmp_path / "saved")
        found = train(boss, *others, first=saved_at)

    assert all(map(torch.equal, expected, found))


def test_a_trigger_that_a_signal_sets(tmp_path):
    """Accelerate's own flag for all ranks is set by a handler; the loop saves after its step."""

    def make(dataset):
        boss = accelerator()
        loader = prepared(boss, WRAP, 2, dataset)
        boss.register_for_checkpointing(Place(loader))
        return boss, loader

    def train(boss, loader, count):
        batches = []
        while len(batches) < count:
            for batch in loader:
                batches.append(told(batch))
                if boss.check_trigger():
                    boss.save_state(tmp_path / "saved")
                    return batches
        return batches

    seed()
    expected = train(*make(Pictures(COUNT)), EPOCHS * STEPS)
    seed()
    boss, loader = make(Stopping(COUNT))
    before = signal.signal(signal.SIGTERM, lambda *_: boss.set_trigger())
    try:
        batches = train(boss, loader, EPOCHS * STEPS)
    finally:
        signal.signal(signal.SIGTERM, before)
    torch.manual_seed(77)
    boss, loader = make(Pictures(COUNT))
    boss.load_state(tmp_path / "saved")

    assert 0 < len(batches) <= STEPS
    assert expected == batches + train(boss, loader, EPOCHS * STEPS - len(batches))
