"""
What people ask of the record of a loader: a report, a trace.

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
    from shmloader.advice import report as advice

    if service.note:
        return advice.Report(None, lines=(service.note,))
    has_workers = loader.num_workers > 0
    last = service.last_epoch(service.setting(loader, options)) if has_workers else None
    report, stats = advice.report_on(*(last or (None, None, None))), service.pool.stats()
    lines = [
        *report.lines,
        *advice.workers_lines(stats.changes),
        *advice.growth_lines(service.pool.left, options.worker_bytes),
        *advice.locked_lines(stats.locked_bytes),
        *advice.changed_lines(service.taken.changed(loader)),
    ]
    return replace(report, lines=tuple(lines))


def write_trace(path: str | os.PathLike[str], services: Iterable[Service]) -> None:
    """Write what trainer and workers did for the last batches of each service."""
    require_component("trace()", "views")
    from shmloader.views import chrome_trace

    traced = [chrome_trace.Traced(*log) for service in services for log in service.logs()]
    from shmloader.memory.segment_pool import LAYOUT  # only now: it needs the core

    chrome_trace.write_trace(path, traced, LAYOUT)
