"""
Every way in which a trainer ends, whatever its workers are doing.

Nothing runs afterwards, and only the trainer may print something, with warnings as errors, and once
in Python's development mode. Deaths of workers are in test_deaths.
"""

import multiprocessing
import signal

import pytest

from shmloader.processes import ending, starting
from tests.helpers.endings import assert_ended, end
from tests.helpers.programs import GONE_WITHIN_S
from tests.helpers.stage import Play

# Blocked workers

# What ends the trainer: its status, and the last line of its traceback.
ENDINGS = {
    "SIGINT": (-signal.SIGINT, "KeyboardInterrupt"),
    "SIGINT to all": (-signal.SIGINT, "KeyboardInterrupt"),
    "fail()": (1, "ValueError: the loop fails"),
    "leave()": (3, ""),
    "os._exit(4)": (4, ""),
    "os.abort()": (-signal.SIGABRT, None),
    "SIGKILL": (-signal.SIGKILL, ""),
    "SIGTERM": (-signal.SIGTERM, ""),
    "SIGTERM to all": (-signal.SIGTERM, ""),
    "SIGHUP to all": (-signal.SIGHUP, ""),
}
# The ends at which the interpreter can still kill what nothing else ends.
ORDERLY = {"SIGINT", "SIGINT to all", "fail()", "leave()"}

LOOPS = {
    "global": """
iterator = iter(loader)
for batch in iterator:
    held = batch
""",
    "function": """
def main():
    for batch in loader:
        held = batch

main()
""",
    "with": """
with loader:
    for batch in loader:
        held = batch
""",
}


@pytest.mark.core(first=1)
@pytest.mark.parametrize("ending", ENDINGS)
def test_blocked_workers_end_with_the_trainer(stage, tmp_path, ending):
    """Workers that are blocked, each in another way, are gone when the trainer is."""
    ways = "ALL_WAYS" if ending in ORDERLY else "WAYS"
    count = 8 if ending in ORDERLY else 6
    act = "time.sleep(0.1)" if ending.startswith("SIG") else f"time.sleep(0.3); {ending}"
    script = f"""
iterator = iter(block_all({ways}))
held = [next(iterator) for _ in {ways}]
while True:
    {act}
"""
    with Play(stage, tmp_path, script) as program:
        end(program, ending, count)
        assert_ended(program, *ENDINGS[ending])


@pytest.mark.thorough
@pytest.mark.parametrize("options", ["", "restarts=2, persistent_workers=True"])
@pytest.mark.parametrize("loop", LOOPS)
def test_interrupt_of_a_wait_for_blocked_workers(stage, tmp_path, loop, options):
    """Ctrl-C ends every kind of loop, even one that closes the loader."""
    script = f"loader = block_all([sleep, be_deaf], {options})\n" + LOOPS[loop]
    with Play(stage, tmp_path, script) as program:
        end(program, "SIGINT to all", 2)
        assert_ended(program, -signal.SIGINT, "KeyboardInterrupt")


class Stubborn:
    """
    A process that ends `ends_after_s` after it was killed, by a clock that only waiting moves.
    """

    now_s = 0.0

    def __init__(self, ends_after_s):
        self.ends_after_s = ends_after_s
        self.ends_at_s = float("inf")

    def is_alive(self):
        return Stubborn.now_s < self.ends_at_s

    def terminate(self):
        """Nothing happens."""

    def kill(self):
        self.ends_at_s = Stubborn.now_s + self.ends_after_s

    def join(self, timeout):
        Stubborn.now_s = max(Stubborn.now_s, min(self.ends_at_s, Stubborn.now_s + timeout))


@pytest.mark.parametrize("count", [1, 64])
def test_all_workers_are_waited_for_together(monkeypatch, count):
    """Any number of workers that ignore all messages are gone within two seconds."""
    monkeypatch.setattr(Stubborn, "now_s", 0.0)
    monkeypatch.setattr(ending.time, "monotonic", lambda: Stubborn.now_s)
    workers = [Stubborn(ends_after_s=0.01) for _ in range(count)]
    ending.join_all(workers, ending.LEAVE_S)
    ending.end_all(workers)

    assert not any(worker.is_alive() for worker in workers)
    assert GONE_WITHIN_S > Stubborn.now_s


# Moments of an epoch, and of a start

# What the trainer is doing: a script that says "blocked" when it, or a worker, is there; how often.
MOMENTS = {
    "the workers start": (
        "say('blocked'); loader = make(Numbers(9), num_workers=16); iter(loader)",
        1,
    ),
    "init": ("iterator = iter(make(Numbers(9), worker_init_fn=block)); next(iterator)", 2),
    "a grant is awaited": (
        """
iterator = iter(make(Numbers(9, size=1 << 17), batch_size=None, ring_bytes=3 << 20))
held = next(iterator)
block()
""",
        1,
    ),
    "batches spill": (
        """
iterator = iter(make(Numbers(99, size=13 << 20), batch_size=None, num_workers=1, slots=1))
say("blocked")
held = [batch for batch in iterator]
""",
        1,
    ),
    "persistent workers wait": (
        """
loader = make(Numbers(9), persistent_workers=True)
for batch in loader:
    held = batch
block()
""",
        1,
    ),
    "the loader is closed": (
        """
loader = block_all([sleep, be_deaf])
iterator = iter(loader)
next(iterator), next(iterator)
loader.dataset.wait()
loader.close()
""",
        2,
    ),
    **{
        f"{method}: workers work": (
            f"""
iterator = iter(make(Numbers(99, pause_s=0.5), multiprocessing_context={method!r}))
next(iterator)
say("blocked")
for batch in iterator: pass
""",
            1,
        )
        for method in ("fork", "forkserver", "spawn")
    },
    "forkserver: the server imports": (
        """
iterator = iter(make(Numbers(9), multiprocessing_context="forkserver"))
time.sleep(0.3)
say("blocked")
next(iterator)
""",
        1,
    ),
    "workers are healed": (
        """
warnings.simplefilter("ignore")
iterator = iter(make(Numbers(9, pause_s=0.1), restarts=3))
os.kill(iterator._workers[0].pid, signal.SIGKILL)
next(iterator), next(iterator)
os.kill(iterator._workers[1].pid, signal.SIGKILL)
block()
""",
        1,
    ),
}


@pytest.mark.core(first=1)
@pytest.mark.parametrize("ending", ["SIGINT to all", "SIGKILL"])
@pytest.mark.parametrize(
    "moment",
    [
        # Those that import take seconds.
        pytest.param(each, marks=[pytest.mark.thorough] * each.startswith(("forkserver", "spawn")))
        for each in MOMENTS
    ],
)
def test_end_at_a_moment(stage, tmp_path, moment, ending):
    """The trainer ends at once, and quietly, whatever it and its workers are doing."""
    script, blocked = MOMENTS[moment]
    with Play(stage, tmp_path, script) as program:
        end(program, ending, blocked)
        assert_ended(program, *ENDINGS[ending])


@pytest.mark.thorough
def test_interrupt_while_spawned_workers_start(stage, tmp_path):
    """Importing workers print nothing about Ctrl-C, nor does the trainer about their end."""
    script = """
iterator = iter(make(Numbers(9), multiprocessing_context="spawn"))
say("blocked")
next(iterator)
"""
    with Play(stage, tmp_path, script) as program:
        end(program, "SIGINT to all", 1)
        assert_ended(program, *ENDINGS["SIGINT to all"])


# Pickled in the trainer, which can be interrupted; unpickled before a worker's own code runs.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("moment", "ending"),
    [("pickled", "SIGINT to all"), ("unpickled", "SIGKILL"), ("unpickled", "SIGINT to all")],
)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_end_while_a_dataset_is_sent(stage, tmp_path, method, moment, ending):
    """A dataset that blocks on its way to a worker delays neither Ctrl-C nor the workers' end."""
    options = f"num_workers=1, multiprocessing_context={method!r}"
    script = f"next(iter(make(Pickling({moment!r}), {options})))"
    with Play(stage, tmp_path, script) as program:
        end(program, ending, 1)
        assert_ended(program, *ENDINGS[ending])


# Interrupts while something starts or ends

# Ctrl-C at a moment, what is said of it, and nothing else is printed.
LEAVING = """
def interrupt_later(worker):
    Finalize(None, os.kill, args=[os.getpid(), signal.SIGINT], exitpriority=2)
    Finalize(None, say, args=["left"], exitpriority=1)


loader = make(Numbers(99), num_workers=1, worker_init_fn=interrupt_later)
iterator = iter(loader)
next(iterator)
"""
INTERRUPTS = {
    "the user's processes of the fork server do not inherit blocked interrupts": (
        """
context = multiprocessing.get_context("forkserver")
lock = context.Lock()  # whose tracker lets interrupts in when it starts
iterator = iter(make(Numbers(9), num_workers=1, multiprocessing_context=context))
process = context.Process(target=tell_interrupts)
process.start()
process.join()
tell_interrupts()
""",
        ["False", "False"],
    ),
    "a dropped iterator waits: it is raised where that was dropped": (
        """
loader = block_all([sleep, sleep])
iterator = iter(loader)
next(iterator), next(iterator)
loader.dataset.wait()
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    del iterator
    for _ in range(100):
        time.sleep(0.01)
except KeyboardInterrupt:
    say("interrupted")
""",
        ["blocked", "blocked", "interrupted"],
    ),
    "workers are forked, and fork hooks swallow all errors: iter() raises it": (
        """
def interrupt():
    if armed.pop():
        _thread.interrupt_main()

armed = [False, True, False]
os.register_at_fork(before=interrupt)
try:
    iter(make(Numbers(9), num_workers=3))
except KeyboardInterrupt:
    say("interrupted")
say(len(armed), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
""",
        ["interrupted", "1 True"],
    ),
    "the user's handler runs in forked workers too, as in torch": (
        """
signal.signal(signal.SIGINT, ignore)
tell = lambda worker: say(signal.getsignal(signal.SIGINT) is ignore)
next(iter(make(Numbers(9), num_workers=1, worker_init_fn=tell)))
tell(None)
""",
        ["True", "True"],
    ),
    "the interpreter waits for its workers: it hastens their end": (
        """
loader = block_all([be_deaf, stop])
iterator = iter(loader)
next(iterator), next(iterator)
loader.dataset.wait()
from shmloader.processes import ending


def interrupt(processes, _):
    ending.join_all = join_all
    signal.raise_signal(signal.SIGINT)


join_all, ending.join_all = ending.join_all, interrupt
""",
        ["blocked", "blocked"],
    ),
    "a worker leaves": (f"{LEAVING}loader.close()", ["left"]),
    "a worker leaves that was interrupted": (
        LEAVING
        + """
os.kill(iterator._workers[0].pid, signal.SIGINT)
iterator._workers[0].join()
loader.close()
""",
        ["left"],
    ),
}


@pytest.mark.core(first=1)
@pytest.mark.parametrize("moment", INTERRUPTS)
def test_interrupts_are_quiet_and_not_lost(stage, tmp_path, moment):
    """Ctrl-C while something starts or ends is raised where the trainer can see it, or no news."""
    script, lines = INTERRUPTS[moment]
    with Play(stage, tmp_path, script) as program:
        assert lines == program.lines()
        assert_ended(program, 0)


def test_interrupt_before_a_fork_leaves_no_trace(monkeypatch):
    """Ctrl-C that is raised while interrupts are being deferred leaves them as they were."""

    def block_late(how, signals):
        before = set_mask(how, signals)
        if how == signal.SIG_BLOCK and signals:
            raise KeyboardInterrupt
        return before

    set_mask = signal.pthread_sigmask
    monkeypatch.setattr(signal, "pthread_sigmask", block_late)
    with pytest.raises(KeyboardInterrupt):
        starting.start(multiprocessing.get_context("fork").Process())

    assert signal.SIGINT not in set_mask(signal.SIG_BLOCK, ())
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)
