"""What a pool's workers did with their time, in words."""

from shmloader.stats.records import Stats
from shmloader.stats.words import percent

_MOSTLY, _OFTEN = 0.5, 0.1  # parts of the workers' time, and of the results


def report_on(stats: Stats) -> str:
    """Say what the workers did, and what would have them do more."""
    times = (stats.worker_busy_s, stats.worker_starved_s, stats.worker_blocked_s)
    whole_s = sum(times)
    if not stats.batches or not whole_s:
        return "nothing to report: no call has returned yet"
    busy, starved, blocked = (each / whole_s for each in times)
    advice = "more workers would help, while there are free cores"
    if blocked > _OFTEN:
        advice = "drop results sooner, or raise ring_bytes"
    elif starved > _MOSTLY:
        advice = "the caller submits too late: have more calls outstanding, or raise chunksize"
    line = (
        f"the workers computed for {percent(busy)} of their time, waited for calls for "
        f"{percent(starved)} and for memory for {percent(blocked)}: {advice}"
    )
    if stats.spilled > _OFTEN * stats.batches:
        reasons = ", ".join(stats.spills)
        line += f"; {stats.spilled} of {stats.batches} results were copied out ({reasons})"
    return line
