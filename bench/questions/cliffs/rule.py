"""
What makes a row fail, and the rows that may.

A drop-in may be equal to torch, and now and then a little worse; it is never much worse.
"""

MOST_TIME = 1.5  # times torch's
OF_OBJECTS = 1.2  # of Python objects, and of small parts of something large
MOST_MEMORY = 1.3

# Below these a ratio says nothing: a wake-up more or less, and what a loader's fixed parts weigh.
SLACK_MS = 0.2
SLACK_MB = 32.0

# Why a row may stay above a limit. A row that is here and below both is to be taken off.
REASONS: dict[str, str] = {
    "slices of shared data": "torch's trainer gets the dataset's own memory; here it gets a copy, "
    "so that a batch is what it was when its worker sent it (docs/differences.md)",
    "sizes at random": "a slot that was large once keeps pages for the next large batch, as far as "
    "a quarter of the available memory goes (docs/tuning.md)",
    "train and val, persistent": "the pages of each wait for its next epoch, until they are a "
    "quarter of what could be had (docs/tuning.md)",
}


def excesses(record: dict) -> list[str]:
    """
    List what of a row is above its limit, with the ratio.

    At its peak a program may need 1.3 times torch's peak. After an epoch the pages of the slots
    stay for the next one, so the measure is torch's peak there too; a row that must give its pages
    back is measured against what torch holds after the epoch.
    """
    found = []
    if _above(record, "ours_ms", "torch_ms", record["most_time"], SLACK_MS):
        found.append(f"time x {record['times_torch']:.3g}")
    if _above(record, "ours_mb", "torch_mb", MOST_MEMORY, SLACK_MB):
        found.append(f"memory x {_ratio(record, 'ours_mb', 'torch_mb')}")
    rival = "torch_after_mb" if record["gives_back"] else "torch_mb"
    if _above(record, "ours_after_mb", rival, MOST_MEMORY, SLACK_MB):
        found.append(f"after the epoch x {_ratio(record, 'ours_after_mb', rival)}")
    return found


def verdict(record: dict) -> str:
    """Say in a cell if the row is within the limits."""
    found = ", ".join(excesses(record))
    if record["mistakes"]:
        return "WRONG"
    if record["name"] not in REASONS:
        return f"ABOVE: {found}" if found else "ok"
    return f"{found}: see below" if found else "no longer above: take it off the list"


def fails(record: dict) -> bool:
    """Returns True if this row makes the command fail."""
    listed = record["name"] in REASONS
    return bool(record["mistakes"]) or (bool(excesses(record)) and not listed)


def _above(record: dict, ours: str, torchs: str, most: float, slack: float) -> bool:
    mine, theirs = record.get(ours), record.get(torchs)
    if mine is None or theirs is None:
        return False
    return mine > most * theirs and mine > theirs + slack


def _ratio(record: dict, ours: str, torchs: str) -> str:
    return f"{record[ours] / max(record[torchs], 1.0):.3g}"
