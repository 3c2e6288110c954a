"""The outcome of a soak as tables for people and as one record."""

from __future__ import annotations

from rich.table import Table

from tests.deaths.soak.flatness import QUANTITIES, Change
from tests.deaths.soak.trial import Result


def deliveries(results: list[Result], period_s: float) -> Table:
    """Tabulate what was delivered, and what died meanwhile."""
    table = Table(title=f"Batches, a worker or nursery killed every {period_s * 1e3:.0f} ms")
    table.add_column("phase")
    heads = ("batches", "torch's too", "/s calm", "/s killed")
    for head in (*heads, "killed", "nurseries", "stopped", "replaced", "hung", "as it should be"):
        table.add_column(head, justify="right")
    for each in results:
        counts = (each.killed, each.nurseries, each.stopped, each.restarts, each.hung)
        table.add_row(
            each.phase,
            str(each.batches),
            str(each.torch_batches),
            _rate(each.batches, each.calm_s),
            _rate(each.batches, each.killed_s),
            *map(str, counts),
            "NO" if each.mistakes else "yes",
        )
    return table


def holdings(results: list[Result], idle: list[Change]) -> Table:
    """Tabulate how much more was held at the end than at first, per phase and without a loader."""
    table = Table(title="Growth, from the first quarter's median to the last quarter's")
    columns = {each.phase: each.changes for each in results if each.changes}
    for place, head in enumerate(("", "tolerance", *columns, "no loader", "held then")):
        table.add_column(head, justify="right" if place else "left")
    for place, quantity in enumerate(QUANTITIES):
        grown = [_growth(changes[place]) for changes in (*columns.values(), idle)]
        tolerance, held = f"{quantity.tolerance:g}", _figure(idle[place].last)
        table.add_row(quantity.title, tolerance, *grown, held)
    return table


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


def _rate(batches: int, seconds: float) -> str:
    return f"{batches / seconds:.1f}" if seconds else "-"


def _growth(change: Change) -> str:
    text = f"{change.last - change.first:+.1f}".removesuffix(".0")
    return f"[red]{text}[/red]" if change.is_growth else text


def _figure(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
