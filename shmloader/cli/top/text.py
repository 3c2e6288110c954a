"""What `shmloader top` shows, as lines of text."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shmloader.cli.attach.trainers import LiveTrainer
from shmloader.cli.top.verdicts import last_change, verdict
from shmloader.stats.words import duration
from shmloader.views.live import LiveLoader, LiveWorker

_TRAINER = {
    "waiting": "waits in next() since",
    "stepping": "uses its batch since",
    "between": "between two epochs since",
    "busy": "changes faster than it can be read",
}
_COLUMNS = ("worker", "pid", "state", "since", "ticket", "sample", "index")
_WIDTHS = (7, 9, 11, 9, 9, 12, 12)


class Line(NamedTuple):
    """A line, and how a terminal shows it: "" as all others, "bold", or "alarm"."""

    text: str
    style: str = ""


def lines_of(trainers: Iterable[LiveTrainer]) -> Iterator[Line]:
    """Yield what is to be shown of trainings, with an empty line between two."""
    for number, trainer in enumerate(trainers):
        if number:
            yield Line("")
        yield Line(f"process {trainer.process.pid}  {trainer.process.command}", "bold")
        if trainer.is_stopped:
            yield Line(f"  {_stopped('it', trainer.process.pid)}", "alarm")
        for loader in trainer.loaders:
            yield from _loader(trainer, loader)
        for reason in trainer.unread:
            yield Line(f"  a segment is not shown: {reason}")


def _loader(trainer: LiveTrainer, loader: LiveLoader) -> Iterator[Line]:
    kind = "pool" if loader.epoch == 0 else "loader"
    yield Line(f"  {kind} {loader.loader}  {loader.label}  {_epoch(loader)}; {_trainer(loader)}")
    for worker in loader.workers:
        if worker.hangs:
            yield Line(f"    {_alarm(trainer, loader, worker)}", "alarm")
        elif worker.state == "stopped":
            yield Line(f"    {_stopped(f'worker {worker.worker}', worker.pid)}", "alarm")
    yield Line(f"    {_pace(loader)}")
    if loader.slots:
        used = [f"{count} {state}" for state, count in loader.slots.items() if count]
        yield Line(f"    slots: {', '.join(used)}; {_ahead(loader)}; {_memory(loader)}")
    line = verdict(loader)
    if line and not trainer.is_stopped:
        yield Line(f"    {line}", "bold")
    if why := last_change(loader):
        yield Line(f"    {why}")
    yield Line("    " + _row(_COLUMNS))
    for worker in loader.workers:
        yield Line("    " + _row(_cells(worker)), "alarm" if worker.hangs else "")


def wrapped(text: str, width: int) -> list[str]:
    """Break a line for a terminal; what goes on below stands two columns further to the right."""
    deeper = " " * (len(text) - len(text.lstrip()) + 2)
    wrapper = textwrap.TextWrapper(
        max(width, 2 * len(deeper)), subsequent_indent=deeper, break_on_hyphens=False
    )
    return wrapper.wrap(text) or [""]


def _epoch(loader: LiveLoader) -> str:
    if loader.epoch is None or loader.batch is None:
        return "epoch unknown"
    if loader.epoch == 0:  # a pool's
        return f"{loader.batch} calls done"
    length = "" if loader.length is None else f" of {loader.length}"
    return f"epoch {loader.epoch}, batch {loader.batch}{length}"


def _trainer(loader: LiveLoader) -> str:
    words = _TRAINER[loader.trainer]
    return words if loader.since_s is None else f"{words} {duration(loader.since_s)}"


def _pace(loader: LiveLoader) -> str:
    pace = loader.pace
    text = f"{pace.batches_per_s:.1f} batches/s, {pace.bytes_per_s / 1e6:.1f} MB/s"
    if pace.waiting is not None:
        text += f", waiting {100 * pace.waiting:.0f} % of the last seconds"
    return text


def _ahead(loader: LiveLoader) -> str:
    made = "" if loader.made is None else f", {loader.made} made"
    return f"{loader.ahead} batches prefetched{made}"


def _memory(loader: LiveLoader) -> str:
    text = f"{(loader.resident_bytes or 0) / 1e6:.1f} MB resident"
    return f"{text}; {loader.spilled} copied out" if loader.spilled else text


def _alarm(trainer: LiveTrainer, loader: LiveLoader, worker: LiveWorker) -> str:
    sample = "a batch that is fetched as a whole"
    if worker.position is not None:
        before = loader.view["resumed_at"] if loader.view else 0
        sample = f"sample {worker.position} of batch {before + (worker.ticket or 0)}"
        if worker.index is not None:
            sample = f"index {worker.index} of the dataset, {sample}"
    usual_s = loader.pace.usual_sample_s if worker.position is not None else None
    usual = "" if usual_s is None else f" (usually {duration(usual_s)})"
    return (
        f"worker {worker.worker}, process {worker.pid}, hangs: it has been fetching {sample} for "
        f"{duration(worker.sample_s or 0.0)}{usual}; to see where: py-spy dump --pid {worker.pid}"
    )


def _stopped(who: str, pid: int | None) -> str:
    return f"{who} was stopped by a signal, as by Ctrl-Z: kill -CONT {pid} resumes it"


def _cells(worker: LiveWorker) -> tuple[object, ...]:
    since = None if worker.since_s is None else duration(worker.since_s)
    sample: object = worker.position
    if worker.position is not None and worker.samples:
        sample = f"{worker.position} of {worker.samples}"
    return worker.worker, worker.pid, worker.state, since, worker.ticket, sample, worker.index


def _row(cells: Iterable[object]) -> str:
    texts = ("-" if cell is None else str(cell) for cell in cells)
    pairs = zip(texts, _WIDTHS, strict=True)
    return " ".join(f"{text:<{width}}" for text, width in pairs).rstrip()
