"""
What people ask of the record of a loader: a report, a picture, a trace.

What serves the loader keeps the record. Judging and showing it are components of their own, advice/
and views/, which are imported when they are asked for, and may be absent.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shmloader.options.options import Options
from shmloader.setup.components import require_component
from shmloader.trainer.chosen import Service

if TYPE_CHECKING:
    from shmloader.advice.report import Report


def report_of(service: Service, loader: Any, options: Options) -> "Report":
    """Judge the last epoch; the options are those that it was run with."""
    require_component("report()", "advice")
    from shmloader.advice.report import (
        Report,
        changed_lines,
        growth_lines,
        locked_lines,
        report_on,
        workers_lines,
    )

    if service.note:
        return Report(None, lines=(service.note,))
    has_workers = loader.num_workers > 0
    last = service.last_epoch(service.setting(loader, options)) if has_workers else None
    report = report_on(*(last or (None, None, None)))
    grows = growth_lines(service.pool.growth, options.worker_bytes)
    stats = service.pool.stats()
    locked = locked_lines(stats.locked_bytes)
    workers = workers_lines(stats.changes)
    changed = changed_lines(service.taken.changed(loader))
    return replace(report, lines=(*report.lines, *workers, *grows, *locked, *changed))


def draw(service: Service, path: str | os.PathLike[str], title: str) -> None:
    """Draw the waits and fetches of the last epoch's batches."""
    require_component("report(picture=...)", "views")
    from shmloader.memory.segment_pool import LAYOUT  # only now: it needs the core
    from shmloader.views import picture

    picture.draw(path, service.last_records(), LAYOUT, title)


def write_trace(path: str | os.PathLike[str], services: Iterable[Service]) -> None:
    """Write what trainer and workers did for the last batches of each service."""
    require_component("trace()", "views")
    from shmloader.views import chrome_trace

    traced = [chrome_trace.Traced(*log) for service in services for log in service.logs()]
    from shmloader.memory.segment_pool import LAYOUT  # only now: it needs the core

    chrome_trace.write_trace(path, traced, LAYOUT)
