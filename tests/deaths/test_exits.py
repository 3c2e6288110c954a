"""A normal exit in every state: no process prints anything, and nothing is left."""

import pytest

from tests.helpers.endings import assert_ended
from tests.helpers.stage import Play

STATES = {
    "held everywhere": """
iterator = iter(make(Numbers(99)))
held = [next(iterator) for _ in range(2)]
view = memoryview(next(iterator).numpy())
cycle = [iterator, next(iterator)]
cycle.append(cycle)
torch.held = Touching(next(iterator))
sys.held = Touching(next(iterator))
touching = Touching(next(iterator))
touching.itself = touching
atexit.register(lambda: held[0].sum())
last_actions.append(lambda: held[1].sum())
threading.Thread(target=held[0].sum).start()
""",
    "several loaders": """
iterators = [iter(make(Numbers(99), persistent_workers=bool(i % 2))) for i in range(4)]
held = [next(iterator) for iterator in iterators]
pairs = zip(iterators[0], iterators[1])
next(pairs)
""",
    "64 workers": "iterator = iter(make(Numbers(999), num_workers=64)); held = next(iterator)",
    "posix backing": """
os.environ["SHMLOADER_BACKING"] = "posix"
iterator = iter(make(Numbers(99)))
held = next(iterator)
""",
    "a daemon thread waits": """
iterator = iter(make(Numbers(99, pause_s=1.0), restarts=1))
threading.Thread(target=next, args=[iterator], daemon=True).start()
last_actions.append(lambda: time.sleep(0.3))
time.sleep(0.1)
""",
    "the very last handler iterates": """
def iterate():
    try:
        sum(1 for _ in iterator)
    except RuntimeError as error:
        say(str(error)[:17])

iterator = iter(make(Numbers(99)))
next(iterator)
last_actions.append(iterate)
""",
    "a forked child ends first": """
iterator = iter(make(Numbers(12, pause_s=0.01), restarts=1))
loader = make(Numbers(12), persistent_workers=True)
assert 12 == sum(1 for _ in loader)
held = next(iterator)
if os.fork() == 0:
    assert 1 == len(list(make(Numbers(1))))
    sys.exit(0)
os.wait()
assert 11 == sum(1 for _ in iterator)
assert 12 == sum(1 for _ in loader)
""",
    "a forked child ends last": """
iterator = iter(make(Numbers(99)))
held = next(iterator)
if os.fork() == 0:
    time.sleep(0.2)
    assert 1 == len(list(make(Numbers(1))))
""",
    "multiprocessing's child iterates": """
def iterate():
    global iterator
    iterator = iter(make(Numbers(99)))
    next(iterator)

iterator = iter(make(Numbers(99)))
process = multiprocessing.get_context("fork").Process(target=iterate)
process.start()
process.join()
assert 0 == process.exitcode
""",
    "a loader in a worker": """
try:
    next(iter(make(InWorker(9))))
except AssertionError as error:
    say("daemonic processes" in str(error))
""",
    "children are not waited for": """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
iterators = []
thread = threading.Thread(target=lambda: iterators.append(iter(make(Numbers(99)))))
thread.start()
thread.join()
next(iterators[0])
""",
    **{
        f"workers of {method} start": f"""
signal.signal(signal.SIGTERM, ignore)
iterator = iter(make(Numbers(99), num_workers=3, multiprocessing_context={method!r}))
"""
        for method in ("fork", "spawn", "forkserver")
    },
}
SAID = {
    "the very last handler iterates": ["DataLoader worker"],
    "a loader in a worker": ["True"],
}


@pytest.mark.core(every=8)
@pytest.mark.parametrize("state", STATES)
def test_exit_is_silent(stage, tmp_path, state):
    """A program that just ends prints nothing and leaves nothing, whatever is alive."""
    with Play(stage, tmp_path, STATES[state]) as program:
        assert_ended(program, 0)
        assert SAID.get(state, []) == program.lines()
