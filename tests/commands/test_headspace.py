"""`shmloader bench --headspace`: what is measured, and what is said of it; no time is asserted."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader as TorchsLoader
from torch.utils.data import IterableDataset

import shmloader
from shmloader import cli
from shmloader.cli import headspace as measuring
from shmloader.cli.command import CommandError
from shmloader.cli.headspace import ROUNDS, Headspace, Round, measure, sentences

MODULE = """
import torch
import shmloader

seen = []

def make_loader():
    return shmloader.DataLoader([torch.tensor(i) for i in range(8)], num_workers=1)

def step(batch):
    seen.append(int(batch))

def fail(batch):
    raise ArithmeticError("no gradient")

number = 3
"""


class Recording:
    """A step that notes which batches it gets, and keeps none."""

    def __init__(self):
        self.values = []
        self.objects = []

    def __call__(self, batch):
        self.values.append(int(batch.sum()))
        self.objects.append(id(batch))


class Samples(IterableDataset):
    """Numbers in order."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(torch.arange(self.count))


def numbers(count):
    """Samples that say which they are."""
    return [torch.tensor(number) for number in range(count)]


def kinds():
    """Loaders of each kind that a user may have, with 6 batches."""
    return {
        "ours": lambda: shmloader.DataLoader(numbers(6), num_workers=2),
        "ours, persistent": lambda: shmloader.DataLoader(
            numbers(6), num_workers=1, persistent_workers=True
        ),
        "torch's": lambda: TorchsLoader(numbers(6), num_workers=1),
        "torch's, without workers": lambda: TorchsLoader(numbers(6)),
        "iterable": lambda: shmloader.DataLoader(Samples(6), num_workers=1),
        "no loader": lambda: numbers(6),
    }


@pytest.mark.core(first=1)
@pytest.mark.parametrize("kind", kinds())
def test_held_batches_are_replayed(kind, monkeypatch):
    """First come the loader's batches, epoch after epoch; then four of them, again and again."""
    step, warmed, warm_up = Recording(), [], measuring._warm_up

    def counted(*arguments):
        before = len(step.values)
        warm_up(*arguments)
        warmed.append(len(step.values) - before)

    monkeypatch.setattr(measuring, "_warm_steps", lambda loader: 3)
    monkeypatch.setattr(measuring, "_warm_up", counted)
    measured = measure(kinds()[kind](), step, 0.2)
    loaded = sum(each.steps for each in measured.loaded) + warmed[0]
    free = step.values[loaded:]

    assert (ROUNDS, ROUNDS) == (len(measured.loaded), len(measured.free))
    assert step.values[:loaded] == [*itertools.islice(itertools.cycle(range(6)), loaded)]
    held = [(loaded + place) % 6 for place in range(4)]
    assert free == [*itertools.islice(itertools.cycle(held), len(free))]
    assert len(free) == sum(each.steps for each in measured.free) + warmed[1]
    assert len({*step.objects[loaded:]}) == 4


def test_a_loader_alone():
    """Without a step nothing is replayed, and the step is asked for."""
    measured = measure(numbers(6), None, 0.1)

    assert (ROUNDS, 0) == (len(measured.loaded), len(measured.free))
    assert "--step module:function" in sentences(measured)[1]


def test_the_loaders_workers_have_ended(monkeypatch):
    """While batches are replayed no worker of the loader lives."""
    loader = shmloader.DataLoader(numbers(6), num_workers=2, persistent_workers=True)
    living = []
    free_warm_up = []

    def look(batches, *_):
        free_warm_up.append(type(batches))
        if len(free_warm_up) == 2:
            living.append(loader._iterator)
        next(batches)

    monkeypatch.setattr(measuring, "_warm_up", look)
    measure(loader, Recording(), 0.1)

    assert [None] == living


@pytest.mark.parametrize("loader", [[], TorchsLoader(Samples(0))], ids=["list", "iterable"])
def test_a_loader_without_batches(loader):
    """A loader that has none is an error, not an endless search."""
    with pytest.raises(CommandError, match="no batch"):
        measure(loader, Recording(), 0.1)


def rounds(steps, next_s):
    """Rounds of a second each."""
    return [Round(each, 1.0, next_s) for each in steps]


def test_what_is_said():
    """The medians of the rounds are told, their range, the share of next(), and the gain."""
    measured = Headspace(rounds([10, 8, 10, 12, 10], 0.75), rounds([40, 40, 39, 41, 40], 0.0))
    loaded, free, gain = sentences(measured)

    assert "10 steps per second (8 to 12); 75% of the time in next()" in loaded
    assert "40 steps per second (39 to 41)" in free
    assert "up to 4.00 times the rate: 75 ms of each step of 100 ms" in gain


@pytest.mark.parametrize("steps", [(10, 10), (10, 9), (100, 104)])
def test_little_is_said_to_be_nothing(steps):
    """A gain within the spread of the rounds is none."""
    loaded, free = steps
    measured = Headspace(rounds([loaded] * 5, 0.01), rounds([free] * 5, 0.0))

    assert "the step is the limit" in sentences(measured)[2]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The user's own module, in the folder where the command runs."""
    name = f"training_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.thorough
def test_command(module, capsys):
    """The command finds both functions in this folder and says three lines."""
    arguments = ["--headspace", f"{module}:make_loader", "--step", f"{module}:step"]
    status = cli.main(["bench", *arguments, "--seconds", "1"])
    lines = capsys.readouterr().out.splitlines()

    assert 0 == status
    assert ["with the loader", "if data were free", "to gain"] == [
        line.partition("  ")[0] for line in lines
    ]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("MODULE", "write it as module:function"),
        ("MODULE:", "write it as module:function"),
        ("MODULE:number", "has no function number"),
        ("MODULE:nothing", "has no function nothing"),
        ("nowhere_at_all:make_loader", "there is no module nowhere_at_all"),
        ("nowhere.at_all:make_loader", "there is no module nowhere.at_all"),
    ],
)
def test_wrong_targets(module, capsys, target, said):
    """A name that leads nowhere is one sentence and status 1; one without a function is 2."""
    status = cli.main(["bench", "--headspace", target.replace("MODULE", module)])

    assert (2 if "write it as" in said else 1) == status
    assert said in capsys.readouterr().err
