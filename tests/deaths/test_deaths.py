"""
Deaths of workers and of the trainer, at any time: torch's error if the trainer lives, nothing left.

The processes of a program are checked here; conftest.py checks /dev/shm after every test. Ends of
the trainer are in test_endings, normal ones in test_exits.
"""

import os
import signal

import pytest

from tests.helpers.endings import HEAD
from tests.helpers.stage import play_file

START_METHODS = ["fork", "forkserver", "spawn"]


@pytest.mark.thorough
def test_worker_that_dies_while_it_leaves_is_no_news(run_program):
    """A worker killed after it was told to leave changes no batch, and close() says nothing."""
    script = """
def doomed(_):
    # Runs when a worker leaves as it was told to.
    Finalize(None, os.kill, args=(os.getpid(), signal.SIGKILL), exitpriority=1)


if __name__ == "__main__":
    loader = make(Numbers(12), worker_init_fn=doomed)
    for _ in range(3):
        say(sum(1 for _ in loader))
        iterator = iter(loader)
        next(iterator)
        del iterator
        iterator = iter(loader)
        next(iterator)
        loader.close()
"""
    status, lines, errors = run_program("from multiprocessing import util\n" + HEAD + script)

    assert (0, ["12"] * 3, "") == (status, lines, errors)


@pytest.mark.core(every=3)
@pytest.mark.parametrize(
    ("method", "restarts"), [*((each, 0) for each in START_METHODS), ("fork", 4), ("forkserver", 4)]
)
def test_trainers_death_ends_blocked_workers(libraries, tmp_path, method, restarts):
    """
    Killing the trainer ends workers in a sleep and in C code that keeps Python's lock, and
    replacements with the process that forked them.
    """
    script = f"""
class Blocked(Numbers):
    def __getitem__(self, index):
        worker = get_worker_info().id
        if index >= 4 and {restarts} and not os.path.exists(f"{{worker}} died"):
            open(f"{{worker}} died", "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if index >= 4:
            say("blocked")
            (sleep if worker == 0 else hold_the_lock)()
        return super().__getitem__(index)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    options = dict(multiprocessing_context={method!r}, restarts={restarts})
    for batch in make(Blocked(40), **options):
        held = batch
"""
    with play_file(libraries, tmp_path, HEAD + script) as program:
        assert ["blocked", "blocked"] == [program.line(), program.line()]
        program.send(signal.SIGKILL)

        assert -signal.SIGKILL == program.wait()
        assert set() == program.left()
        assert "" == program.errors


@pytest.mark.core(every=4)
@pytest.mark.parametrize(
    ("method", "backing"),
    [("fork", "memfd"), ("forkserver", "memfd"), ("fork", "posix"), ("spawn", "posix")],
)
def test_death_of_all_leaves_nothing(libraries, tmp_path, method, backing):
    """
    Killing the trainer and all workers in the middle of an epoch leaves nothing on the machine.
    """
    script = f"""
if __name__ == "__main__":
    iterator = iter(make(Numbers(100000), multiprocessing_context={method!r}, batch_size=4))
    held = [next(iterator) for _ in range(6)]
    say(*(worker.pid for worker in iterator._workers))
    for batch in iterator:
        held = held[1:] + [batch]
"""
    with play_file(libraries, tmp_path, HEAD + script, SHMLOADER_BACKING=backing) as program:
        pids = [program.pid, *map(int, program.line().split())]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

        program.wait()
        assert set() == program.left()
