"""install(): loaders of torch's own class, served by us, and `shmloader run`, which does it."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.utils.data
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import shmloader
from shmloader import interception
from shmloader.cli.run import observing
from shmloader.cli.run.epochs import Took, Watched
from shmloader.cli.run.table import lines
from shmloader.trainer.iterator import RingIterator
from tests.helpers.copies import Child
from tests.helpers.datasets import Computed
from tests.helpers.programs import search_path
from tests.torch.golden.privates import ThreadContext

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def installed():
    shmloader.install()
    yield
    shmloader.uninstall()


def augmented(index):
    """A number with one drawn in the worker."""
    return torch.tensor([float(index), torch.rand(()).item()])


def open_loader(kind=DataLoader, **options):
    given = {"batch_size": 3, "num_workers": 2, "shuffle": True, "multiprocessing_context": "fork"}
    return kind(Computed(24, augmented), **{**given, **options})


def epochs(loader, count=2):
    torch.manual_seed(5)
    return [[batch.tolist() for batch in loader] for _ in range(count)]


class Sub(DataLoader):
    """A subclass that calls torch's hook."""

    def _get_iterator(self):
        self.asked = True
        return super()._get_iterator()


@pytest.mark.core(first=1)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", [DataLoader, Sub])
def test_served_loaders_deliver_torchs_batches(installed, kind, persistent):
    """Made before or after, of a subclass or not: the same bits, by our iterator."""
    options = {"kind": kind, "persistent_workers": persistent}
    served = epochs(open_loader(**options))
    loader = open_loader(**options)
    assert isinstance(iter(loader), RingIterator)
    assert epochs(loader, 1) and loader.__class__ is kind
    shmloader.uninstall()
    torchs = open_loader(**options)
    assert epochs(torchs) == served
    if persistent:
        assert type(torchs._iterator) is _MultiProcessingDataLoaderIter


def test_uninstall_puts_back_what_was_there():
    """Torch's own function stands there again, however often it was installed."""
    torchs = DataLoader._get_iterator
    shmloader.install()
    shmloader.install(restarts=1)
    assert DataLoader._get_iterator is not torchs
    shmloader.uninstall()
    shmloader.uninstall()
    assert DataLoader._get_iterator is torchs


@pytest.mark.thorough
def test_uninstall_leaves_what_came_after(monkeypatch):
    """If another project replaced the hook since, its function stays, and loaders are torch's."""
    shmloader.install()
    ours = DataLoader._get_iterator
    monkeypatch.setattr(DataLoader, "_get_iterator", lambda self: ours(self))
    shmloader.uninstall()
    assert type(iter(open_loader())) is _MultiProcessingDataLoaderIter
    monkeypatch.undo()
    shmloader.install()
    shmloader.uninstall()
    assert type(iter(open_loader())) is _MultiProcessingDataLoaderIter


@pytest.mark.thorough
def test_options_are_those_of_the_last_install(installed):
    """They are checked as a loader's are, and hold for epochs that begin later."""
    with pytest.raises(ValueError, match="slots should be at least 1, but got 0"):
        shmloader.install(slots=0)
    loader = open_loader()
    epochs(loader)
    assert shmloader.stats(loader).slots["free"] == 2 * 2 + 6
    shmloader.install(slots=7)
    epochs(loader)
    assert shmloader.stats(loader).slots["free"] == 7


class Own(DataLoader):
    """A subclass that makes iterators of its own."""

    def _get_iterator(self):
        return _MultiProcessingDataLoaderIter(self)


def test_what_cannot_be_served_stays_torchs(installed):
    """No workers, and a subclass with iterators of its own."""
    alone = open_loader(num_workers=0, multiprocessing_context=None)
    assert not isinstance(iter(alone), RingIterator)
    assert type(iter(open_loader(Own))) is _MultiProcessingDataLoaderIter
    threads = open_loader()
    # torch checks the context that a constructor is given.
    threads._DataLoader__multiprocessing_context = ThreadContext()
    assert interception.served_iterator(threads) is None


@pytest.mark.thorough
def test_stats_and_close_of_any_loader(installed):
    """A loader of torch's, one of ours, and what holds them, however a framework keeps them."""
    loader, ours = open_loader(persistent_workers=True), open_loader(shmloader.DataLoader)
    epochs(loader), epochs(ours, 1)
    holder = SimpleNamespace(base_dataloader=loader, more={"val": [ours]}, again=loader)

    assert [16, 8, 24] == [shmloader.stats(each).batches for each in (loader, ours, holder)]
    pids = [worker.pid for worker in loader._iterator._workers]
    shmloader.close(holder)
    assert loader._iterator is None
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert epochs(loader, 1)  # iterating again starts afresh
    assert shmloader.stats(open_loader()).batches == 0
    for function in (shmloader.stats, shmloader.close):
        with pytest.raises(TypeError, match="function is not a torch DataLoader, and holds none"):
            function(augmented)


@pytest.mark.thorough
def test_forked_child_has_workers_of_its_own(installed):
    """With persistent workers too: torch's __iter__ would reset the parent's iterator there."""
    loader = open_loader(persistent_workers=True, shuffle=False)
    expected = [batch[:, 0].tolist() for batch in loader]

    def iterate():
        found = [batch[:, 0].tolist() for batch in loader]
        shmloader.close(loader)
        return found

    assert repr(expected) == Child(iterate).end()
    assert expected == [batch[:, 0].tolist() for batch in loader]


SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

def total(loader):
    return sum(float(batch[0].sum()) * (place + 1) for place, batch in enumerate(loader))

def main():
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(64, 3))
    train = DataLoader(data, batch_size=4, shuffle=True, num_workers=2,
                       persistent_workers="keep" in sys.argv, multiprocessing_context="fork")
    test = DataLoader(data, batch_size=32)
    print(sum(total(train) for _ in range(4)), total(test), sys.argv[1:], __name__)

if __name__ == "__main__":
    main()
"""


def run(folder, *arguments, **variables):
    """Run Python in a folder; its output, and what it said on stderr."""
    environment = {**os.environ, "PYTHONPATH": search_path(), **variables}
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


def ran(folder, text, *options):
    """Write a program, and run it under `shmloader run`."""
    (folder / "program.py").write_text(text)
    return run(folder, "-m", "shmloader", "run", *options, "program.py")


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def rows(said):
    """Return the table's rows: title and whose -> epochs and batches."""
    lines = re.findall(r"^(\S.*?)  +(shmloader|torch) +(\d+) +(\d+) ", said, re.MULTILINE)
    return {(title, whose): (int(number), int(batches)) for title, whose, number, batches in lines}


TRAIN = "TensorDataset, batch_size 4, 2 workers"
TEST = "TensorDataset, batch_size 32, 0 workers"


@pytest.mark.thorough
@pytest.mark.parametrize(("arguments", "compare"), [((), True), (("keep",), False)])
def test_program_runs_as_it_is(script, compare, arguments):
    """The same output, its own arguments, and one table on stderr of who iterated what."""
    expected, _ = run(script, "train.py", *arguments)
    options = ["--compare"] if compare else []
    found, said = run(script, "-m", "shmloader", "run", *options, "train.py", *arguments)

    assert expected == found
    shares = {"shmloader": (2, 32), "torch": (2, 32)} if compare else {"shmloader": (4, 64)}
    trained = {(TRAIN, whose): share for whose, share in shares.items()}
    assert {**trained, (TEST, "torch"): (1, 2)} == rows(said)
    assert f"{TEST}:\n  runs with torch's own loader: it has no workers" in said
    assert compare == ("per batch than torch's loader" in said) == ("Losses may differ" in said)


def watched(length, ours, torchs):
    """Return what is known of a loader: of each side its epochs, batches, and ms a batch waits."""
    took = {
        by: Took(epochs, batches, batches * ms / 1e3, batches * ms / 1e3)
        for by, (epochs, batches, ms) in {"shmloader": ours, "torch": torchs}.items()
    }
    return Watched("D", length, took=took)


NONE = (0, 0, 0)
UNCOMPARED = "nothing to compare: torch's own loader runs every second epoch"
ALIKE = {
    "made anew for each epoch": (
        [watched(9, (1, 9, 1), NONE)] * 3,
        [f"D (3 times):\n  {UNCOMPARED}"],
    ),
    "of one length": ([watched(9, (2, 18, 1), (2, 18, 2))], ["D:\n  waits 50 % less"]),
    "training and validation": (
        [watched(90, (1, 90, 1), NONE), watched(9, (2, 18, 3), (2, 18, 2))],
        [f"D, 90 batches:\n  {UNCOMPARED}", "D, 9 batches:\n  waits 50 % more"],
    ),
    "one that torch never had": (
        [watched(9, (1, 9, 1), NONE), watched(9, (2, 18, 3), (2, 18, 2))],
        ["D (2 times):\n  waits 50 % more"],
    ),
    "an odd number of epochs": (
        [watched(None, (2, 180, 8), (1, 90, 8)), watched(None, (1, 9, 1), (1, 9, 1))],
        ["D (2 times):\n  waits 0 % less"],
    ),
}


@pytest.mark.parametrize("case", ALIKE)
def test_loaders_that_look_alike_are_compared_one_by_one(case):
    """Each with itself: of what both have iterated, and equally much of both."""
    seen, expected = ALIKE[case]
    said = "\n".join(lines(seen, {}, 1.0, compares=True))

    assert len(expected) == len(re.findall(r"than torch's loader|nothing to compare", said))
    assert all(words in said for words in expected)
    assert "compare" not in "".join(lines([watched(9, (1, 9, 1), NONE)], {}, 1.0))


SLOW = """
import time
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        time.sleep(0.005)
        return index

if __name__ == "__main__":
    for _ in range(2):
        for batch in DataLoader(Slow(), 4, num_workers=2):  # which ends before its iterator
            time.sleep(0.002)
    for batch in DataLoader(Slow(), 48, num_workers=2):
        pass
    kept = DataLoader(Slow(), 4, num_workers=1, persistent_workers=True)
    for count in (24, 2):
        for _, batch in zip(range(count), kept):
            time.sleep(0.05)
"""


@pytest.mark.thorough
def test_each_loop_has_a_verdict(script):
    """What limits each loop and what to change is said once, of its last epoch that is enough."""
    _, said = ran(script, SLOW)
    block = r"^Slow, batch_size (\d+), (\d) workers?(.*?):\n  (\w+): (.*(?:\n  .*)*)"
    verdicts = re.findall(block, said, re.M)

    assert [("4", "2", " (2 times)"), ("4", "1", "")] == [each[:3] for each in verdicts]
    (_, _, _, cause, fast), (_, _, _, other, slow) = verdicts
    assert ("fetching", "step") == (cause, other)
    assert "\n  set num_workers=" in fast and "Faster data would change nothing" in slow


@pytest.mark.thorough
def test_module_and_options(script):
    """As `python -m`, with our options in front of it."""
    found, said = run(script, "-m", "shmloader", "run", "--slots", "7", "-m", "train", "--slots")
    assert "['--slots'] __main__" in found
    assert (TRAIN, "shmloader") in rows(said)
    threads = ("--fetch-threads", "4", "--restarts", "1")
    ours = ("--assignment", "dynamic", *threads, "--seed-by", "batch")
    _, said = run(script, "-m", "shmloader", "run", *ours, "train.py")
    assert (TRAIN, "shmloader") in rows(said)


SPAWNS = """
import multiprocessing
import train

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=train.main)
    child.start()
    child.join(40)
"""


@pytest.mark.thorough
def test_children_and_ranks(script):
    """A spawned child is served and says which it is; of several ranks the first one speaks."""
    _, said = ran(script, SPAWNS)
    assert (TRAIN, "shmloader") in rows(said)
    assert re.match(r"shmloader run, process \d+: 2 loaders", said)
    _, said = run(script, "-m", "shmloader", "run", "train.py", RANK="1")
    assert said == ""


@pytest.mark.parametrize("number", ["0", "3"])
@pytest.mark.parametrize("name", observing._RANKS)
def test_the_first_rank_of_a_launcher_is_known(monkeypatch, name, number):
    """By the number that each launcher gives its processes, and a program without one is it."""
    for each in observing._RANKS:
        monkeypatch.delenv(each, raising=False)
    assert observing._is_first_rank()
    monkeypatch.setenv(name, number)
    assert (number == "0") == observing._is_first_rank()


@pytest.mark.thorough
def test_next_sitecustomize_is_imported(script):
    """The one that ours hides runs too, and stands under its name; sys.path is as without us."""
    (script / "site").mkdir()
    (script / "site" / "sitecustomize.py").write_text("MARK = 'theirs'")
    (script / "look.py").write_text(
        "import sitecustomize, sys\nprint(sitecustomize.MARK, any('hook' in p for p in sys.path))"
    )
    path = os.pathsep.join([str(script / "site"), search_path()])
    found, said = run(script, "-m", "shmloader", "run", "look.py", PYTHONPATH=path)
    assert (found, said) == ("theirs False\n", "")


@pytest.mark.thorough
@pytest.mark.parametrize("given", [("--", "-h"), ("a", "--", "b", "--"), ("--compare", "-m", "x")])
def test_arguments_are_the_programs_own(script, given):
    """All of them, a `--` and names of our options too; and Python's `-u` goes on to it."""
    (script / "said.py").write_text("import sys\nprint(sys.argv[1:], sys.stdout.write_through)")
    expected, _ = run(script, "-u", "said.py", *given, PYTHONUNBUFFERED="")
    for program in (("said.py",), ("--", "said.py"), ("-m", "said")):
        launcher = ("-u", "-m", "shmloader", "run", *program)
        found, _ = run(script, *launcher, *given, PYTHONUNBUFFERED="")
        assert expected == found


RANGE = "range, batch_size 1, 1 worker"
TRAINED = {(TRAIN, "shmloader"): (4, 64), (TEST, "torch"): (1, 2)}
# What a program does, and the rows of its table.
PROGRAMS = {
    "workers iterate loaders, and print no table": (
        """from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

class Outer(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return sum(DataLoader(range(index)))

if __name__ == "__main__":
    batches = BatchSampler(SequentialSampler(range(6)), 3, drop_last=False)
    for method in ("fork", "spawn"):
        loader = DataLoader(
            Outer(), batch_sampler=batches, num_workers=1, multiprocessing_context=method
        )
        print(len(list(loader)))
""",
        {("Outer, batch_size 3, 1 worker (2 times)", "shmloader"): (2, 4)},
    ),
    "it installs by itself, with its own options": (
        """import shmloader
import train
from torch.utils.data import DataLoader

if __name__ == "__main__":
    shmloader.install(slots=9)
    loader = DataLoader(range(8), num_workers=1)
    print(len(list(loader)), sum(shmloader.stats(loader).slots.values()))
    shmloader.uninstall()
    print(len(list(loader)), shmloader.stats(loader).batches)
    shmloader.install(slots=7)
    loader = DataLoader(range(8), num_workers=1)
    print(len(list(loader)), sum(shmloader.stats(loader).slots.values()))
""",
        {(f"{RANGE} (2 times)", "shmloader"): (2, 16), (f"{RANGE} (2 times)", "torch"): (1, 8)},
    ),
    "its method is in torch's class, and stderr is a file that is closed by the end": (
        """import sys
import train
from torch.utils.data import DataLoader

class Counting:
    calls = 0

torchs = DataLoader.__iter__

def counting(loader):
    Counting.calls += 1
    return torchs(loader)

if __name__ == "__main__":
    DataLoader.__iter__ = counting
    with open("errors.txt", "w") as sys.stderr:
        train.main()
    print(Counting.calls, DataLoader.__iter__ is counting)
""",
        TRAINED,
    ),
    "first epochs begin on threads, and an iterator is dropped, whose workers end": (
        """import os
import threading
from torch.utils.data import DataLoader

def work(barrier):
    loader = DataLoader(range(8), num_workers=1)
    barrier.wait()
    list(loader)

if __name__ == "__main__":
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(barrier,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loader = DataLoader(range(4), batch_size=2, num_workers=1, persistent_workers=True)
    list(loader)
    pid = loader._iterator._workers[0].pid
    loader._iterator = None  # as frameworks end workers
    print(os.path.exists(f"/proc/{pid}"))
""",
        {
            (f"{RANGE} (4 times)", "shmloader"): (4, 32),
            ("range, batch_size 2, 1 worker", "shmloader"): (1, 2),
        },
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run_as_without_us(script, program):
    """The output is the same, and one table on stderr says who served each epoch."""
    text, expected = PROGRAMS[program]
    (script / "program.py").write_text(text)
    alone, _ = run(script, "program.py")
    found, said = ran(script, text, "--slots", "5")

    assert alone == found
    assert expected == rows(said)
    assert 1 == said.count("shmloader run:")
    assert ("program called shmloader.uninstall()" in said) == ("uninstall" in text)
    assert not any(path.read_text() for path in script.glob("errors.txt"))


KINDS = """
from torch.utils.data import DataLoader

class Asks(DataLoader):
    def _get_iterator(self):
        return super()._get_iterator()

class Iterates(DataLoader):
    def __iter__(self):
        yield from self._get_iterator()

if __name__ == "__main__":
    for kind, size in ((Asks, 1), (Iterates, 2)):
        loader = kind(range(8), batch_size=size, num_workers=1)
        for _ in range(2):
            list(loader)
    loader = DataLoader(range(8), batch_size=4, num_workers=1)
    list(loader)
    loader.num_workers, loader.prefetch_factor = 0, None
    list(loader)
"""


@pytest.mark.thorough
def test_subclasses_and_changed_loaders(script):
    """A class that reaches torch's hook is served, an epoch counts once, workers may go away."""
    _, said = ran(script, KINDS, "--compare")
    expected = {
        ("range, batch_size 4, 1 worker", "shmloader"): (1, 2),
        ("range, batch_size 4, 0 workers", "torch"): (1, 2),
    }
    for size, batches in ((1, 8), (2, 4)):
        for whose in ("shmloader", "torch"):
            expected[f"range, batch_size {size}, 1 worker", whose] = 1, batches
    assert expected == rows(said)


WARNS = """
import torch
from torch.utils.data import DataLoader, IterableDataset

torch._utils.cpu_count = lambda: 1

class Longer(IterableDataset):
    def __len__(self):
        return 1

    def __iter__(self):
        return iter(range(2))

if __name__ == "__main__":
    for workers in (0, 2):
        loader = DataLoader(Longer(), batch_size=None, num_workers=workers)
        assert len(loader) == 1
        for _ in range(2):
            list(loader)
"""


@pytest.mark.thorough
def test_torchs_warnings_name_the_programs_line(script):
    """The warnings name the user's line, and a filter by torch's module holds for them too."""
    (script / "warns.py").write_text(WARNS)
    launcher = ("-m", "shmloader", "run", "--compare", "warns.py")
    silence = "ignore::UserWarning:torch.utils.data.dataloader"
    _, said = run(script, "-W", "always", "-W", silence, *launcher)
    places = re.findall(r"^(\S+?):\d+: UserWarning: (Length|This)", said, re.MULTILINE)
    # One sample too many in each epoch without workers, one of each worker's two but the first.
    assert places == [(str(script / "warns.py"), "Length")] * (2 + 2 * 3)
