"""The memory of all processes over time: a strip for each load, a line for each way to load it."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

_COLOURS = {"torch": "#0071bc", "ours": "#c1272d"}
_NAMES = {"torch": "torch", "ours": "shmloader"}


def draw(records: list[dict], path: Path) -> None:
    """Draw curves into a file: dashed without the load's cure, solid with it."""
    loads = list(dict.fromkeys(record["load"] for record in records))
    figure, strips = pyplot.subplots(
        1, len(loads), figsize=(4.2 * len(loads), 3.9), squeeze=False, layout="constrained"
    )
    for axes, load in zip(strips[0], loads, strict=True):
        chosen = [record for record in records if record["load"] == load]
        for record in chosen:
            cure = f", {record['cure'].replace('`', '')}" if record["cure"] else ""
            axes.plot(
                record["seconds"], record["mb"], label=_NAMES[record["loader"]] + cure,
                color=_COLOURS[record["loader"]], linestyle="-" if record["cure"] else "--",
            )  # fmt: skip
        axes.set_title(chosen[0]["grows"], loc="left", fontsize=10)
        axes.set_xlabel("seconds", fontsize=10)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        # Below: in the middle it would hide the ends of curves.
        axes.legend(
            frameon=False, fontsize=8, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.17)
        )
    strips[0][0].set_ylabel("MB of all processes", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    print(f"wrote {path}")
