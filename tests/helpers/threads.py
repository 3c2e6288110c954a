"""Functions on threads of their own, and threads that are named."""

import contextlib
import threading
from pathlib import Path

LONGEST_WAIT_S = 60  # only a hang reaches it


def on_threads(*calls):
    """Call functions at once, each on its own thread. Returns what they returned, in order."""
    results = [None] * len(calls)

    def run(number):
        results[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_WAIT_S)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return results


def on_a_thread(call):
    """Call a function on another thread. Returns what it returned."""
    return on_threads(call)[0]


@contextlib.contextmanager
def named_threads(*names):
    """Have threads of these names, as the kernel knows them."""
    done, named = threading.Event(), threading.Barrier(len(names) + 1)

    def wait(name):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        named.wait(LONGEST_WAIT_S)
        done.wait(LONGEST_WAIT_S)

    made = [threading.Thread(target=wait, args=[name]) for name in names]
    for each in made:
        each.start()
    named.wait(LONGEST_WAIT_S)
    try:
        yield
    finally:
        done.set()
        for each in made:
            each.join(LONGEST_WAIT_S)
