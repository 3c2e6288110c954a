"""The outcome of a soak as one record."""

from __future__ import annotations

from tests.deaths.soak.flatness import Change
from tests.deaths.soak.trial import Result


def record(results: list[Result], idle: list[Change], mistakes: list[str]) -> dict:
    """Put all of it into one record."""
    totals = {
        name: sum(getattr(each, name) for each in results)
        for name in (
            "batches",
            "torch_batches",
            "killed",
            "nurseries",
            "stopped",
            "restarts",
            "hung",
        )
    }
    phases = [{**vars(each), "changes": _figures(each.changes)} for each in results]
    return {
        "correct": not mistakes,
        "mistakes": mistakes,
        **totals,
        "phases": phases,
        "no_loader": _figures(idle),
    }


def _figures(changes: list[Change]) -> dict[str, list[float]]:
    return {each.quantity.key: [each.first, each.last] for each in changes}
