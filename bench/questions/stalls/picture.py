"""The waits of each step as a picture: a strip for each loader, and one for the bound."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from bench.questions.stalls.tails import FIRST

_COLOURS = {"torch": "#0071bc", "cycle": "#e8a0a3", "dynamic": "#c1272d", "bound": "#404040"}
_LABELS = {
    "torch": "torch",
    "cycle": "shmloader",
    "dynamic": 'shmloader, assignment="dynamic"',
    "bound": "a loader without overhead",
}


def draw(waits_s: dict[str, list[float]], path: Path) -> None:
    """Draw the waits of each loader, by its name, into a file."""
    figure, strips = pyplot.subplots(
        len(waits_s), figsize=(9, 5), sharex=True, sharey=True, layout="constrained"
    )
    for axes, (name, waits) in zip(strips, waits_s.items(), strict=True):
        steps = range(FIRST, FIRST + len(waits))
        axes.bar(steps, [1e3 * wait for wait in waits], width=1.0, color=_COLOURS[name])
        axes.set_title(f"{_LABELS[name]}: {sum(waits):.2f} s of waiting", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    figure.supxlabel("step", fontsize=10)
    figure.supylabel("ms of waiting", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"wrote {path}")
