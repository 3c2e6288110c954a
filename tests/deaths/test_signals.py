"""
Signals to the whole process group of a trainer that handles them: nothing ends but what it ends.

Which signals, and what of a worker's they leave alone, is in conformance/test_signals_of_jobs.
"""

import pytest

from tests.helpers.endings import HEAD as ENDINGS
from tests.helpers.stage import play_file

HEAD = (
    ENDINGS
    + """
from shmloader import Pool, publish, subscribe

came = []


def note(number, _):
    came.append(number)
    say("handled", os.getpid())


def number_of(batch):
    return int(batch.flatten()[0])


def squared(number):
    time.sleep(0.01)
    return number * number


def numbers_of(loader):
    for batch in loader:
        yield number_of(batch)


def through_a_stop(loader, another):
    \"\"\"Loop until the second signal, and go on in another loader.\"\"\"
    for number in numbers_of(loader):
        yield number
        if len(came) > 1:
            break
    state = loader.state_dict()
    loader.close()
    another.load_state_dict(state)
    yield from numbers_of(another)
    another.close()


def read_apart(name):
    assert list(range(60)) == list(map(number_of, subscribe(name, timeout=60)))
"""
)

LOADER = """
loaders = [make(Numbers(60, 0.005), seed_by="batch", timeout=60, {}) for _ in range(2)]
loaders[0].start()
values, expected = through_a_stop(*loaders), list(range(60))
"""
POOL = """
pool = Pool(2, {!r})
values, expected = pool.map(squared, range(60)), [each * each for each in range(60)]
"""
PUBLISHER = """
loader = make(Numbers(60, 0.005), timeout=60)
lent = publish(loader, f"signals-{os.getpid()}", 1, consume=True)
fork, given = multiprocessing.get_context("fork"), (lent._publisher.name,)
subscriber = fork.Process(target=read_apart, args=given)
subscriber.start()
os.setpgid(subscriber.pid, 0)  # it is another job's
values, expected = numbers_of(lent), list(range(60))
"""
SERVER = "multiprocessing_context='forkserver'"
SPAWN = "multiprocessing_context='spawn', num_workers=1"  # each imports torch
CLIENTS = {
    "fork": LOADER.format(""),
    "fork, restarts": LOADER.format("restarts=1"),
    "spawn": LOADER.format(SPAWN),
    "fork, persistent": LOADER.format("persistent_workers=True"),
    "forkserver": LOADER.format(SERVER),
    "spawn, restarts": LOADER.format(f"{SPAWN}, restarts=1"),
    "Pool": POOL.format("fork"),
    "forkserver, all": LOADER.format(f"{SERVER}, restarts=1, persistent_workers=True"),
    "Pool, spawn": POOL.format("spawn"),
    "publisher": PUBLISHER,
}


def lines_of(libraries, folder, script):
    """Run a program, which prints no error and leaves nothing, to its end. Returns its lines."""
    with play_file(libraries, folder, HEAD + script) as program:
        assert 0 == program.wait(), program.errors
        assert ("", set()) == (program.errors, program.left())
        return [line.replace(str(program.pid), "here") for line in program.lines()]


@pytest.mark.core(first=1)
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_a_job_that_is_told_to_end_loses_nothing(libraries, tmp_path, client):
    """SIGTERM while workers start and in mid-epoch is handled once each, and all values come."""
    script = f"""
if __name__ == "__main__":
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)  # as asyncio does
    signal.signal(signal.SIGTERM, note)
    {client.strip().replace(chr(10), chr(10) + "    ")}
    os.killpg(0, signal.SIGTERM)
    seen = [next(values) for _ in range(20)]
    os.killpg(0, signal.SIGTERM)
    seen += values
    say(seen == expected, os.read(reader, 100).count(signal.SIGTERM))
"""
    expected = ["handled here", "handled here", "True 2"]
    assert expected == lines_of(libraries, tmp_path, script)


@pytest.mark.core(every=3)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_handler_that_is_set_later_counts_from_iter_on(libraries, tmp_path, method):
    """Workers that persist leave to the trainer what it handles by then."""
    script = f"""
if __name__ == "__main__":
    loader = make(Numbers(20), persistent_workers=True, multiprocessing_context={method!r})
    list(loader)
    signal.signal(signal.SIGTERM, note)
    batches = iter(loader)
    os.killpg(0, signal.SIGTERM)
    say(len(list(batches)))
    loader.close()
"""
    assert ["handled here", "20"] == lines_of(libraries, tmp_path, script)


@pytest.mark.thorough
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_workers_own_handler_stays(libraries, tmp_path, method, epoch):
    """What the init function has set runs, whenever the trainer's was set."""
    script = f"""
def set_own(worker):
    signal.signal(signal.SIGUSR1, lambda *_: say("own"))
    faulthandler.register(signal.SIGUSR2, open("stacks", "a"))


if __name__ == "__main__":
    loader = make(
        Numbers(20, 0.02),
        persistent_workers=True,
        worker_init_fn=set_own,
        multiprocessing_context={method!r},
    )
    for epoch in range(2):
        if epoch == {epoch}:
            signal.signal(signal.SIGUSR1, note)
            signal.signal(signal.SIGUSR2, note)
        batches = iter(loader)
        next(batches), next(batches)
        if epoch == 1:
            os.killpg(0, signal.SIGUSR1)
            os.killpg(0, signal.SIGUSR2)
        list(batches)
    loader.close()
"""
    lines = lines_of(libraries, tmp_path, "import faulthandler\n" + script)

    assert ["handled here"] * 2 + ["own"] * 2 == sorted(lines)
    assert 2 == (tmp_path / "stacks").read_text().count("Current thread")


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_replacement_has_what_the_dead_worker_had(libraries, tmp_path, method):
    """Of a later epoch too: it leaves to the trainer what was set since the workers started."""
    script = f"""
import pathlib, warnings
from shmloader import RestartWarning
from tests.helpers.datasets import DiesOnce

if __name__ == "__main__":
    warnings.simplefilter("ignore", RestartWarning)
    died = pathlib.Path("died")
    died.touch()
    dying = DiesOnce(Numbers(60, 0.005), died, 5)
    loader = make(dying, restarts=9, persistent_workers=True, multiprocessing_context={method!r})
    list(loader)
    signal.signal(signal.SIGTERM, note)
    died.unlink()
    batches = iter(loader)
    numbers = [number_of(next(batches)) for _ in range(10)]
    pid = batches._workers[1].pid
    os.kill(pid, signal.SIGTERM)
    numbers += map(number_of, batches)
    say(numbers == list(range(60)), loader.stats().restarts, batches._workers[1].pid == pid)
    loader.close()
"""
    assert ["True 1 True"] == lines_of(libraries, tmp_path, script)
