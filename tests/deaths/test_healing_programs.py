"""Healing in programs of their own: deaths of each process, and what is left."""

import pytest

from tests.helpers.endings import HEAD as ENDINGS
from tests.helpers.stage import play_file

HEAD = (
    ENDINGS
    + """
from shmloader import RestartWarning


class Dying(Numbers):
    \"\"\"Every worker dies at one of these numbers, once.\"\"\"

    def __init__(self, count, *numbers):
        super().__init__(count)
        self.numbers = numbers

    def __getitem__(self, index):
        if index in self.numbers and not os.path.exists(f"died at {index}"):
            open(f"died at {index}", "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)
"""
)


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
def test_exit_after_healing_says_nothing_else(libraries, tmp_path, persistent):
    """A program that healed and ends, in mid-epoch too, prints the warnings and leaves nothing."""
    script = f"""
if __name__ == "__main__":
    loader = make(Dying(12, 0, 5), restarts=4, persistent_workers={persistent})
    list(loader)
    iterator = iter(make(Dying(50, 20, 21), restarts=4, persistent_workers={persistent}))
    for _, held in zip(range(30), iterator):
        continue
    cycle = [loader, iterator]
    cycle.append(cycle)
"""
    with play_file(libraries, tmp_path, HEAD + script) as program:
        assert (0, [], set()) == (program.wait(), program.lines(), program.left())
        said = program.errors.splitlines()

    loops = ["list(loader)", "for _, held in zip(range(30), iterator):"]
    assert [loops[0], loops[0], loops[1], loops[1]] == [line.strip() for line in said[1::2]]
    assert all("program.py" in line and "RestartWarning: " in line for line in said[::2])


@pytest.mark.thorough
def test_replacement_that_nobody_reaps(run_program):
    """The end of an orphan is noticed even if it stays a zombie, as in a container."""
    script = """
if __name__ == "__main__":
    ctypes.CDLL(None).prctl(36, 1)  # orphans become children of this process, which reaps none
    warnings.simplefilter("ignore", RestartWarning)
    iterator = iter(make(Dying(60, 0), restarts=9, prefetch_factor=1))
    next(iterator), next(iterator)
    nursery = iterator._running.processes.mother
    nursery.kill()
    nursery.join()
    next(iterator)
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    say(sum(1 for _ in iterator), nursery.count)
"""
    status, lines, errors = run_program(HEAD + script)

    assert (0, ["57 2"], "") == (status, lines, errors)


@pytest.mark.thorough
@pytest.mark.parametrize("numbers", [(), (3, 9)])
def test_nothing_is_left_to_a_first_process_that_reaps_nothing(run_program, numbers):
    """The trainer and the nursery reap all that they started, as in a container without an init."""
    script = f"""
if __name__ == "__main__":
    ctypes.CDLL(None).prctl(36, 1)  # orphans become children of this process, which reaps none
    if (trainer := os.fork()) == 0:
        warnings.simplefilter("ignore", RestartWarning)
        for _ in range(3):
            list(make(Dying(20, *{numbers}), restarts=9))
            iter(make(Dying(20), restarts=9))._shutdown_workers()
        sys.exit(0)
    say(os.waitpid(trainer, 0)[1], open(f"/proc/self/task/{{os.getpid()}}/children").read().split())
"""
    status, lines, errors = run_program(HEAD + script)

    assert (0, ["0 []"], "") == (status, lines, errors)
