"""What iter() says, once, of what workers are about to suffer from."""

import logging
import os
import platform
import time
import warnings

import pytest
import torch

from shmloader import DataLoader, Pool, errors
from shmloader.processes import foreign_threads, scheduling
from shmloader.transport import waiting
from tests.helpers.datasets import Computed
from tests.helpers.programs import run
from tests.helpers.threads import named_threads
from tests.helpers.warned import AT_A_FORK, recorded


@pytest.fixture(autouse=True)
def nothing_was_told(monkeypatch):
    """Nothing was said before, in this process."""
    monkeypatch.setattr(foreign_threads, "_told", set())
    monkeypatch.setattr(foreign_threads, "_looked_at", [])
    monkeypatch.setattr(errors, "_warned", set())


def told(iterate, words):
    """Return the warnings with one of some words."""
    with recorded() as caught:
        iterate()
    texts = [str(each.message) for each in caught]
    return [text for text in texts if any(word in text for word in words)]


def iterate(method="fork", workers=1):
    def run_an_epoch():
        loader = DataLoader([1, 2], num_workers=workers, multiprocessing_context=method)
        assert 2 == len(list(loader))

    return run_an_epoch


def pool(method="fork"):
    def call():
        with Pool(1, mp_context=method) as made:
            assert 3 == made.submit(abs, -3).result()

    return call


# Threads


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["polars-0", "polars-1", "polars-2"], "threads of polars ("),
        (["tokio-runtime-w"], "threads of tokio (tokio-runtime-w):"),
        (["tokio-rt-worker"], "threads of tokio (tokio-rt-worker):"),
        (["rayon-3"], "threads of rayon (rayon-3):"),
        (["ts_pool_worker"], "threads of tensorstore (ts_pool_worker):"),
        (["grpc_global_tim", "event_engine"], "threads of gRPC ("),
    ],
)
def test_threads_that_a_forked_worker_lacks_are_named(names, said):
    """One line says whose they are, and what to do."""
    with named_threads(*names):
        (line,) = told(iterate(), ["threads of"])
    assert said in line
    assert "'forkserver'" in line


@pytest.mark.thorough
@pytest.mark.parametrize("first", [iterate, pool])
def test_they_are_named_once(first):
    """By a loader or a pool; the remedy is right: no other start method forks from this process."""
    words = ["threads of"]
    with named_threads("polars-0"):
        assert [] == told(iterate("forkserver"), words) + told(pool("forkserver"), words)
        assert 1 == len(told(first(), words))
        assert [] == told(iterate(), words) + told(pool(), words)


def test_an_error_of_it_comes_before_any_worker():
    """A warning that is an error is that of one iter(); the next one goes on."""
    with named_threads("polars-0"), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", AT_A_FORK, DeprecationWarning)
        with pytest.raises(UserWarning, match="threads of polars"):
            iterate()()
        iterate()()


def late(index):
    time.sleep(2 * index)
    return index


@pytest.mark.thorough
def test_a_hang_names_them_again(monkeypatch, caplog):
    """The line about a first batch that is late does, and the error of a timeout."""
    monkeypatch.setattr(waiting, "_AFTER_S", 0.2)
    caplog.set_level(logging.WARNING, "shmloader")
    options = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": 1}
    with named_threads("polars-0"), recorded():
        loader = DataLoader(Computed(2, late), sampler=[1], **options)
        with pytest.raises(RuntimeError, match=r"timed out.*which has threads of polars"):
            next(iter(loader))

    (line,) = [record.getMessage() for record in caplog.records]
    assert "threads of polars (polars-0): a worker lacks them" in line


def test_threads_of_torch_and_of_the_program_are_no_news():
    """Threads of torch's operations, of autograd and of Python have done no harm for years."""
    size = (512, 512)
    torch.ones(size, requires_grad=True).matmul(torch.ones(size)).sum().backward()
    with named_threads("python", "pt_main_thread", "pt_autograd_0", "jemalloc_bg_thd"):
        assert [] == told(iterate(), ["threads of"])


# Threads of OpenMP live as long as the program.
OPENMP = """
import ctypes, os, pathlib, shutil, signal, time, warnings
import torch
from shmloader import DataLoader
from shmloader.processes import foreign_threads

(own,) = pathlib.Path(torch.__file__).parent.glob("lib*/libgomp*")
os.mkdir("stranger.libs")
library = ctypes.CDLL(shutil.copy(own, os.path.abspath("stranger.libs/libgomp-0.so.1")))
work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.01))

def parallel():
    library.GOMP_parallel(work, None, 3, 0)

def hangs():
    child = os.fork()
    if child == 0:
        signal.alarm(1)
        parallel()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGALRM

parallel()
deadline = time.monotonic() + 20
while not foreign_threads.look() and time.monotonic() < deadline:
    time.sleep(0.05)  # they spin at first
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", UserWarning)
    for _ in range(2):
        list(DataLoader([1], num_workers=1, multiprocessing_context="fork"))
print(*["threads of OpenMP in stranger (" in str(each.message) for each in caught], hangs())
"""


@pytest.mark.thorough
@pytest.mark.skipif("x86" not in platform.machine(), reason="OpenMP waits in code of libc's there")
def test_openmp_of_another_library_is_named(run_program):
    """Its threads have no names, but wait in its code; and a worker that uses it does hang."""
    status, lines, errors = run_program(OPENMP)

    assert (0, ["True True"]) == (status, lines), errors


# Cores

TORCHS = "This DataLoader will create 2 worker processes in total. Our suggested"
OURS = "This DataLoader will create 2 worker processes in total: OMP_PLACES=cores binds"


@pytest.mark.parametrize(
    ("setting", "cores", "workers", "expected"),
    [
        ({"OMP_PLACES": "cores"}, 1, 2, [OURS, OURS]),
        ({"OMP_PLACES": "cores", "OMP_PROC_BIND": "false"}, 1, 2, [TORCHS, TORCHS]),
        ({}, 1, 2, [TORCHS, TORCHS]),
        ({"OMP_PLACES": "cores"}, 8, 2, []),
        ({"OMP_PLACES": "cores"}, 2, 2, []),
        ({"OMP_PLACES": "cores"}, 1, 1, ["the training shares its core with its worker: OMP"]),
        ({}, 1, 1, []),
    ],
)
def test_few_cores_have_a_reason(monkeypatch, setting, cores, workers, expected):
    """Where torch warns, as a loader is made and at iter(), there is one warning, with it."""
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(scheduling, "allowed_cores", lambda process: 8 if process else cores)
    monkeypatch.setattr(torch._utils, "cpu_count", lambda: cores)
    found = told(iterate(workers=workers), ["worker"])

    assert len(expected) == len(found)
    assert all(map(str.startswith, found, expected))


BOUND = """
import functools, os, warnings
from shmloader import DataLoader

def widen(worker):
    os.sched_setaffinity(0, range(os.cpu_count()))

class Cores(list):
    def __getitem__(self, index):
        return len(os.sched_getaffinity(0))

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for method in ("fork", "forkserver"):
        for init in (None, widen):
            options = dict(worker_init_fn=init, multiprocessing_context=method)
            print(*map(int, DataLoader(Cores([0]), num_workers=1, **options)))
"""


@pytest.mark.thorough
@pytest.mark.skipif(1 == scheduling.allowed_cores(0), reason="there is one core to bind to")
@pytest.mark.parametrize("setting", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"])
def test_what_is_said_of_openmp_is_true(tmp_path, setting):
    """It binds the program to some cores, workers inherit that, and the remedy frees them."""
    values = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "GOMP_CPU_AFFINITY": "0"}
    there = scheduling.allowed_cores(0)
    status, lines, errors = run(tmp_path, BOUND, **{setting: values[setting]})

    assert 0 == status, errors
    bound, freed = set(map(int, lines[::2])), set(map(int, lines[1::2]))
    assert max(bound) < there == min(freed) == max(freed)
