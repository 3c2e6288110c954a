"""Which workers a preloaded server forks, what it imports, and what it says if it cannot."""

import multiprocessing
import re
import sys
from multiprocessing import forkserver

import pytest
import torch
from torch.utils.data import Dataset

from shmloader import DataLoader, PreloadFailed, UnusedOptionWarning
from shmloader.processes.servers import servers
from tests.helpers.warned import recorded


class Imported(Dataset):
    """Says if the worker has a module, before anything here imports it."""

    def __init__(self, name="this"):
        self.name = name

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([self.name in sys.modules, index])


def open_loader(**options):
    """With one worker: each that no server forks imports torch, and so for long."""
    return DataLoader(Imported(), num_workers=1, **options)


def batches(loader):
    return [batch.tolist() for batch in loader]


def serving():
    """List the pids of the servers that run now."""
    return {server.process.pid for server in servers.processes() if server.is_alive()}


@pytest.fixture(autouse=True)
def without_servers():
    """Begin and end without a server."""
    servers.close()
    yield
    servers.close()


def expected(is_imported):
    return [[[int(is_imported), index]] for index in range(8)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "is_imported", "count"),
    [
        ({"multiprocessing_context": "forkserver"}, False, 1),
        ({"multiprocessing_context": "forkserver", "preload": ["this"]}, True, 1),
        ({"multiprocessing_context": "spawn", "preload": ("this",)}, True, 1),
        ({"multiprocessing_context": "spawn"}, False, 0),
        ({"multiprocessing_context": "spawn", "preload": ()}, False, 0),
        ({"multiprocessing_context": "forkserver", "preload": ()}, False, 0),
        ({"multiprocessing_context": "fork"}, False, 0),
    ],
)
def test_which_have_a_server(options, is_imported, count):
    """Forkserver has one, spawn if modules are named; the same batches, epoch after epoch."""
    with open_loader(**options) as loader:
        assert expected(is_imported) == batches(loader)
        first = serving()
        assert expected(is_imported) == batches(loader)

    assert (count, first) == (len(first), serving())


@pytest.mark.thorough
def test_context_of_user_code_is_left_alone():
    """Workers of a class of one's own are started by it; nothing is preloaded for them."""

    class Context(type(multiprocessing.get_context("spawn"))):
        pass

    with open_loader(multiprocessing_context=Context()) as loader:
        assert expected(False) == batches(loader)
    with open_loader(multiprocessing_context=Context(), preload=("this",)) as loader:
        assert expected(False) == batches(loader)
    assert set() == serving()


@pytest.mark.thorough
def test_fork_server_of_user_code_is_left_alone():
    """Neither the one process of multiprocessing nor its list of modules is used or changed."""
    before = forkserver._forkserver._preload_modules, forkserver._forkserver._forkserver_pid
    with open_loader(multiprocessing_context="forkserver") as loader:
        batches(loader)

    after = forkserver._forkserver._preload_modules, forkserver._forkserver._forkserver_pid
    assert before == after


@pytest.mark.thorough
def test_list_of_the_fork_server_counts(monkeypatch):
    """What multiprocessing was told to preload is preloaded here too, if it can be imported."""
    monkeypatch.setitem(sys.modules, "this", None)
    told = ["__main__", "this", "no_such"]
    monkeypatch.setattr(forkserver._forkserver, "_preload_modules", told)
    with open_loader(multiprocessing_context="forkserver") as loader:
        assert expected(True) == batches(loader)
    with open_loader(multiprocessing_context="forkserver", preload=("json",)) as loader:
        assert expected(False) == batches(loader)


@pytest.mark.thorough
def test_module_that_is_missing():
    """The error names the module, at each epoch, and is Python's own too."""
    with open_loader(multiprocessing_context="spawn", preload=("json", "no_such")) as loader:
        for _ in range(2):
            with pytest.raises(PreloadFailed, match=r"'no_such' .* No module named") as raised:
                batches(loader)
            assert "no_such" == raised.value.name


@pytest.mark.thorough
def test_module_that_is_mended(tmp_path, monkeypatch):
    """After an error, as in a notebook, the next start tries again."""
    monkeypatch.syspath_prepend(tmp_path)
    options = {"multiprocessing_context": "spawn", "preload": ("mended_later",)}
    with open_loader(**options) as loader:
        with pytest.raises(PreloadFailed, match="mended_later"):
            batches(loader)
        (tmp_path / "mended_later.py").touch()
        assert expected(False) == batches(loader)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise OSError('not today')", "OSError: not today"),
        ("import os; os.abort()", "'fails' .* that ended the process by signal 6. .* preload"),
    ],
)
def test_module_that_fails(tmp_path, monkeypatch, text, words):
    """Any error of an import is told; for one that crashes it is said what to do."""
    (tmp_path / "fails.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with (
        open_loader(multiprocessing_context="spawn", preload=("fails",)) as loader,
        pytest.raises(PreloadFailed, match=words),
    ):
        batches(loader)


THREADED = """
import threading, time
threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
"""
OPENED = "import os, pathlib; file = open(pathlib.Path(__file__).parent / 'some.data', 'rb')"
# As torch does where a module has asked for the accelerators, if there are some.
POISONED = """
import os, torch

own = os.getpid()
torch.cuda._is_in_bad_fork = lambda: own != os.getpid()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (THREADED, "starts threads"),
        (OPENED, r"leaves files open \(.*some\.data\)"),
        (POISONED, "uses an accelerator"),
    ],
    ids=["thread", "open file", "accelerator"],
)
def test_module_that_a_fork_would_spoil(tmp_path, monkeypatch, text, said):
    """A forked worker would lack it: each imports by itself, and a warning says why, once."""
    (tmp_path / "some.data").touch()
    name = f"spoilt_at_import_{len(text)}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    options = {"multiprocessing_context": "spawn", "preload": (name,)}
    with recorded() as warned, open_loader(**options) as loader:
        assert expected(False) == batches(loader)
        assert expected(False) == batches(loader)

    assert [True] == [bool(re.search(said, str(warning.message))) for warning in warned]


@pytest.mark.thorough
def test_what_modules_print(run_program, tmp_path):
    """It comes out once, also where Python keeps it back."""
    (tmp_path / "printing.py").write_text("print('imported')")
    script = """
from shmloader import DataLoader
if __name__ == "__main__":
    list(DataLoader(range(8), num_workers=2, multiprocessing_context="spawn", preload=["printing"]))
"""
    assert (0, ["imported"], "") == run_program(script)


# No worker is done before the other has imported the script: one alone could make every batch.
MAIN = """
import functools, multiprocessing, os, sys
print("script", __name__, os.getppid() == int(sys.argv[1]) if sys.argv[1:] else "", flush=True)
from shmloader import DataLoader


class Numbers:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


def meet(barrier, worker):
    barrier.wait(60)


if __name__ == "__main__":
    sys.argv.append(str(os.getpid()))
    barrier = multiprocessing.get_context("forkserver").Barrier(2)
    options = dict(num_workers=2, multiprocessing_context="forkserver", preload={preload})
    options["worker_init_fn"] = functools.partial(meet, barrier)
    for _ in range(2):
        print([int(batch) for batch in DataLoader(Numbers(), **options)])
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("preload", "count"), [(None, 4), (("__main__",), 1)])
def test_script_that_is_imported_once(run_program, preload, count):
    """`__main__` is the script: one process imports it for all workers, with its arguments."""
    status, lines, errors = run_program(MAIN.format(preload=preload))
    by_worker = [line for line in lines if line.startswith("script __mp_main__")]

    assert (0, "") == (status, errors)
    assert 2 == lines.count("[0, 1, 2, 3]")
    assert [f"script __mp_main__ {preload is not None}"] * count == by_worker


@pytest.mark.thorough
def test_script_without_a_guard_is_not_preloaded(run_program):
    """Its import would start workers: torch's error of that, and no process more."""
    script = """
from shmloader import DataLoader
options = dict(num_workers=1, multiprocessing_context="forkserver", preload=["__main__"])
list(DataLoader(range(4), **options))
"""
    status, lines, errors = run_program(script)

    assert (1, []) == (status, lines)
    assert "PreloadFailed: module '__main__' cannot be imported" in errors
    assert "An attempt has been made to start a new process" in errors


@pytest.mark.thorough
def test_frozen_program(monkeypatch):
    """What a frozen program would start as a server is itself: each worker is started by Python."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with open_loader(multiprocessing_context="forkserver") as loader:
        assert expected(False) == batches(loader)
    assert set() == serving()


@pytest.mark.thorough
def test_files_in_the_folder_are_not_imported(tmp_path, monkeypatch):
    """A file of the working folder that is called as a module of Python's stays a file."""
    for name in ("inspect", "marshal", "socket", "struct"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the folder')\n")
    monkeypatch.chdir(tmp_path)
    with open_loader(multiprocessing_context="forkserver") as loader:
        assert expected(False) == batches(loader)


def test_unused_under_fork():
    """A forked worker has imported what the trainer has."""
    with pytest.warns(UnusedOptionWarning, match="preload"):
        DataLoader(range(8), num_workers=1, multiprocessing_context="fork", preload=("json",))
