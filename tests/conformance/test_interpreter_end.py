"""
The interpreter's end, with every public class in every hand: what the standard class does.

A program makes something, leaves it in some state in somebody's hand, and ends. The calls that the
standard class would still make are made, the status is its, nothing is printed on stderr although
warnings are errors, no process is left; and it ends. Loaders' workers that are blocked while their
trainer ends are in deaths/test_endings.
"""

import functools

import pytest

from tests.helpers.stage import Stage, play_file

HEAD = """
import atexit, concurrent.futures.process, gc, multiprocessing, os, sys, threading, time, warnings
import numpy, torch, torch.utils.data
import shmloader, shmloader.pool.executor, shmloader.publishing
"""

PROGRAM = """
import atexit, concurrent.futures, multiprocessing, os, sys, threading, time, warnings
import shmloader, torch, torch.utils.data

warnings.simplefilter("error")
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
FORK = multiprocessing.get_context("fork")
multiprocessing.set_start_method("fork")  # as before Python 3.14: this program guards nothing


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


def call(number):
    time.sleep(0.01)
    say("call")
    return number


class Numbers(torch.utils.data.Dataset):
    pause_s = 0

    def __len__(self):
        return 6

    def __getitem__(self, index):
        time.sleep(self.pause_s)
        return torch.tensor(index)


def attempt():
    try:
        say(use(*held))
    except Exception as error:
        say(type(error).__name__)


# The other end of what is published: a process that multiprocessing waits for at its end.


def apart(target, *arguments):
    def run():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        target(*arguments)

    FORK.Process(target=run).start()


def read(name):
    for _ in shmloader.subscribe(name):
        pass


def lend(name, pause_s=0):
    Numbers.pause_s = pause_s
    shmloader.publish(shmloader.DataLoader(Numbers(), num_workers=1), name, subscribers=1)
"""

# In whose hand `held` is when the program ends.
HOLDERS = {
    "global": "held = make()",
    "global that was used": "held = make()\nattempt()",
    "cycle": """
class Node: pass
node = Node()
node.itself, node.held = node, make()
del node
""",
    "module": "sys.held = torch.held = make()",
    "thread": """
def hold():
    global held
    held = make()
    made.set()
    threading.main_thread().join()
    time.sleep(0.05)  # the main one is behind what the interpreter calls first at its end
    attempt()

made = threading.Event()
threading.Thread(target=hold).start()
made.wait()
""",
    "daemon thread": """
def hold():
    held = make()
    made.set()
    time.sleep(100)

made = threading.Event()
threading.Thread(target=hold, daemon=True).start()
made.wait()
""",
    "atexit": "held = make()\natexit.register(attempt)",
    "exit with a status": "held = make()\nsys.exit(3)",
}

# `new()` by who provides it; the first one is the standard class.
POOLS = {
    "ProcessPoolExecutor": "concurrent.futures.ProcessPoolExecutor(2, FORK)",
    "Pool": "shmloader.Pool(2, 'fork')",
}
LOADERS = {
    "torch": "torch.utils.data.DataLoader(Numbers(), num_workers=2)",
    "DataLoader": "shmloader.DataLoader(Numbers(), num_workers=2)",
    "restarts": "shmloader.DataLoader(Numbers(), num_workers=2, restarts=1)",
    "persistent": "shmloader.DataLoader(Numbers(), num_workers=2, persistent_workers=True)",
}
# By state: what makes it of `it = new()`, what is held, and how that is used.
POOL_STATES = {
    "unused": ("", "it", "it.submit(abs, -3).result()"),
    "map under way": ("got = it.map(call, range(9)); next(got)", "it, got", "list(got)"),
    "its results alone": ("it = it.map(call, range(9)); next(it)", "it", "list(it)"),
    "map not begun": ("got = it.map(call, range(9))", "it, got", "list(got)"),
    "two maps": (
        "one, other = it.map(call, range(5)), it.map(call, range(5)); next(other)",
        "it, one, other",
        "list(zip(one, other))",
    ),
    "calls under way": (
        "got = [it.submit(call, number) for number in range(9)]",
        "it, got",
        "[each.result() for each in got]",
    ),
    "map to be shut down": ("got = it.map(call, range(9)); next(got)", "it, got", "it.shutdown()"),
    "finished map": ("list(it.map(call, range(3)))", "it", "list(it.map(call, range(3)))"),
    "finished call": ("it.submit(call, 3).result()", "it", "it.submit(call, 3).result()"),
    "closed": ("list(it.map(call, range(3))); it.shutdown()", "it", "it.submit(call, 3)"),
    "broken": ("it.submit(os._exit, 3).exception()", "it", "it.submit(call, 3)"),
}
LOADER_STATES = {
    "unused": ("", "it", "len(list(it))"),
    "under way": (
        "batches = iter(it); kept = next(batches).numpy()",
        "it, batches, kept",
        "len(list(batches))",
    ),
    "its iterator alone": ("it = iter(it); next(it)", "it", "len(list(it))"),
    "finished": ("list(it)", "it", "len(list(it))"),
    "closed": ("next(iter(it)); getattr(it, 'close', int)()", "it", "len(list(it))"),
}

# What has no standard class.
LENT = "shmloader.publish(shmloader.DataLoader(Numbers(), num_workers=1), name, 1, consume=True)"
NAMED = "name = f'end{os.getpid()}'; "
OTHERS = {
    "publication": (NAMED + f"it = {LENT}", "it", "len(it)"),
    "publication under way": (
        NAMED + f"it = {LENT}; apart(read, name); batches = iter(it); next(batches)",
        "it, batches",
        "len(it)",
    ),
    "finished publication": (NAMED + f"it = {LENT}; apart(read, name); list(it)", "it", "len(it)"),
    "closed publication": (
        NAMED + f"it = {LENT}; apart(read, name); list(it); it.close()",
        "it",
        "len(it)",
    ),
    "subscription": (
        NAMED + "apart(lend, name); it = shmloader.subscribe(name); len(it)",
        "it",
        "len(it)",
    ),
    "subscription under way": (
        NAMED + "apart(lend, name); it = shmloader.subscribe(name); got = iter(it); next(got)",
        "it, got",
        "len(list(got)) + 1",
    ),
    "its epoch alone": (
        NAMED + "apart(lend, name); it = iter(shmloader.subscribe(name)); next(it)",
        "it",
        "len(list(it)) + 1",
    ),
    "subscription that a daemon thread reads": (
        NAMED + "apart(lend, name, 0.2); it = shmloader.subscribe(name); len(it); "
        "threading.Thread(target=lambda: [*it], daemon=True).start(); time.sleep(0.3)",
        "it",
        "len(it)",
    ),
    "finished subscription": (
        NAMED + "apart(lend, name); it = shmloader.subscribe(name); list(it)",
        "it",
        "len(list(it))",
    ),
    "closed subscription": (
        NAMED + "apart(lend, name); it = shmloader.subscribe(name); list(it); it.close()",
        "it",
        "it.__exit__() or 6",
    ),
    "SharedList": ("it = shmloader.SharedList(range(6)); one = it[3]", "it, one", "len(it)"),
    "SharedDict": ("it = shmloader.SharedDict({1: 'one'}); one = it[1]", "it, one", "len(it) + 5"),
    "cached": ("it = shmloader.cached(Numbers(), 1 << 20); one = it[3]", "it, one", "len(it)"),
    "share": (
        "it = Numbers(); it.all = list(range(6)); shmloader.share(it, 'all')",
        "it",
        "len(it.all)",
    ),
}

# ProcessPoolExecutor wakes a thread by a pipe that it has just closed, once in fifty such ends.
STUMBLE = "thread_wakeup.wakeup()"
TRIES = 5


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Give what runs a program to its end, and returns its status and its lines, sorted."""
    folder = tmp_path_factory.mktemp("ends")
    with Stage(folder, HEAD) as stage:

        @functools.cache
        def run(new, state, holder, is_quiet):
            make, held, use = state
            script = f"""{PROGRAM}
def make():
    it = {new}
    {make or "pass"}
    return [{held}]


def use({held}):
    return {use}

{HOLDERS[holder]}
"""
            for _ in range(TRIES):
                with play_file(stage, folder, script) as program:
                    status, lines = program.wait(), program.lines()
                    if is_quiet:
                        assert ("", set()) == (program.errors, program.left())
                    if STUMBLE not in program.errors:
                        break
            return status, sorted(lines)

        yield run


def of(kinds, states):
    """
    Return each kind but the standard one, with it, in each state, in each hand.

    Kinds behind the first take turns: each pair of a state and a hand is one of some kinds.
    """
    standard, first, *more = kinds
    every = [(state, holder) for state in range(len(states)) for holder in range(len(HOLDERS))]
    cases = [(first, *pair) for pair in every]
    for turn, kind in enumerate(more):
        cases += [(kind, *pair) for pair in every if (sum(pair) + turn) % 4 == 0]
    return [
        pytest.param(
            kinds[standard], kinds[kind], states[state], holder, id=f"{kind}-{state}-{holder}"
        )
        for kind, state, holder in (
            (kind, list(states)[state], list(HOLDERS)[holder]) for kind, state, holder in cases
        )
    ]


@pytest.mark.core(first=1)
@pytest.mark.parametrize(("standard", "ours", "state", "holder"), of(POOLS, POOL_STATES))
def test_a_pool_ends_as_the_standard_one(run, standard, ours, state, holder):
    """What was asked is done, what is asked too late is refused, and nobody is told of it."""
    assert run(standard, state, holder, False) == run(ours, state, holder, True)


@pytest.mark.core(first=1)
@pytest.mark.parametrize(("standard", "ours", "state", "holder"), of(LOADERS, LOADER_STATES))
def test_a_loader_ends_as_torchs(run, standard, ours, state, holder):
    """A loader goes on in a thread and in a handler of the end, and nothing is told of it."""
    assert run(standard, state, holder, False) == run(ours, state, holder, True)


def in_turns(states):
    """Return each state in a third of the hands, and each hand with a third of the states."""
    return [
        (state, holder)
        for place, state in enumerate(states)
        for holder in list(HOLDERS)[place % 3 :: 3]
    ]


@pytest.mark.core(values=1)
@pytest.mark.parametrize(("state", "holder"), in_turns(OTHERS))
def test_others_end_quietly(run, state, holder):
    """What has no standard class says what it has, as long as it is asked, and is quiet."""
    is_asked = holder in ("global that was used", "thread", "atexit")
    status = 3 if holder == "exit with a status" else 0
    assert (status, ["6"] if is_asked else []) == run("None", OTHERS[state], holder, True)
