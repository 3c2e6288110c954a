"""The memory of all processes as workers are added: a line for each way to keep records."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

_COLOURS = {"list": "#404040", "numpy": "#5aa9e6", "torch": "#0071bc", "SharedList": "#c1272d"}
_LABELS = {
    "list": "a list",
    "numpy": "pickles in a numpy array",
    "torch": "pickles in a tensor",
    "SharedList": "SharedList",
}


def draw(records: list[dict], path: Path) -> None:
    """Draw what records take with torch's loader, a strip for each start method, into a file."""
    methods = sorted({record["context"] for record in records})
    figure, strips = pyplot.subplots(
        1, len(methods), figsize=(4.5 * len(methods), 3.6), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axes, method in zip(strips[0], methods, strict=True):
        for store, label in _LABELS.items():
            chosen = [
                each
                for each in records
                if (each["context"], each["loader"], each["store"]) == (method, "torch", store)
            ]  # fmt: skip
            axes.plot(
                [record["workers"] for record in chosen],
                [record["above_mb"] for record in chosen],
                marker="o", color=_COLOURS[store], label=label,
            )  # fmt: skip
        axes.set_title(method, loc="left", fontsize=10)
        axes.set_xlabel("workers", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    strips[0][0].set_ylim(bottom=0)
    strips[0][0].set_ylabel("MB of all processes", fontsize=10)
    strips[0][0].legend(frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"wrote {path}")
