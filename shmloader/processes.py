"""
Ending processes, never waiting longer than can be waited for.

A worker that is told to leave may be anywhere: in user code, stopped, or deaf to SIGTERM. Whoever
waits for it waits for all together, then asks, then kills.
"""

import time

# Together less than the two seconds within which all workers of a trainer that ends are gone.
LEAVE_S = 1.0  # to finish the batch in hand
_TERMINATE_S = 0.5  # to end after SIGTERM
_KILL_S = 5.0  # after SIGKILL only the kernel can be waited for


def join_all(processes, timeout_s):
    """Wait until all processes have ended, at most timeout_s seconds for all of them together."""
    deadline = time.monotonic() + timeout_s
    for process in processes:
        process.join(timeout=max(0.0, deadline - time.monotonic()))


def end_all(processes):
    """End the processes that still run, those too that are stopped or deaf to SIGTERM."""
    try:
        for process in _running(processes):
            process.terminate()
        join_all(processes, _TERMINATE_S)
    finally:
        # Also after an interrupt: whoever is impatient shall not have to wait for more.
        for process in _running(processes):
            process.kill()
        join_all(processes, _KILL_S)


def _running(processes):
    return [process for process in processes if process.is_alive()]
