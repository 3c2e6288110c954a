"""README's bar chart: what a batch takes with torch, with shmloader, and at least, as an SVG."""

from collections.abc import Iterable
from html import escape
from pathlib import Path

from bench.report import table

# Batches that people have, and what the chart calls them.
_LOADS = {
    "imagenet": "64 images (3, 224, 224)",
    "detection": "16 images with boxes",
    "ragged": "64 token rows, not padded",
    "tabular": "4096 rows of a table",
    "video": "32 clips (8, 3, 224, 112)",
}
_BARS = {"torch_fd": "torch", "ours": "shmloader", "limit": "lower bound"}

_WIDTH, _LEFT, _RIGHT = 640, 8, 96
_GROUP, _BAR, _HEAD = 74, 14, 52
_STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328 }
  .small { font-size: 12px; fill: #59636e }
  .torch { fill: #8c959f } .shmloader { fill: #0969da } .lower { fill: #afb8c1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 }
    .torch { fill: #656c76 } .shmloader { fill: #4493f8 } .lower { fill: #3d444d }
  }
"""


def write(path: Path, records: Iterable[dict]) -> None:
    """
    Draw those of the loads that were measured with all three.

    Args:
        records: Rows of a run: `workload`, `contender`, `ms_per_batch`.
    """
    found = {(row["workload"], row["contender"]): row["ms_per_batch"] for row in records}
    loads = [load for load in _LOADS if all(found.get((load, name)) for name in _BARS)]
    if loads:
        path.write_text(_drawn(loads, found))
        print(f"wrote {path}")


def _drawn(loads: list[str], found: dict[tuple[str, str], float]) -> str:
    height = _HEAD + _GROUP * len(loads)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        "<title>Milliseconds per batch: torch, shmloader and the lower bound</title>",
        f"<style>{_STYLE}</style>",
        _text(_LEFT, 18, "Milliseconds per batch; each group is scaled to torch"),
    ]
    for left, name in zip(range(_LEFT, _WIDTH, 110), _BARS.values(), strict=False):
        parts += [_bar(left, 28, 12, name), _text(left + 18, 39, name, "small")]
    for top, load in zip(range(_HEAD, height, _GROUP), loads, strict=True):
        parts.append(_text(_LEFT, top + 14, _LOADS[load]))
        slowest = max(found[load, name] for name in _BARS)
        for place, (name, label) in enumerate(_BARS.items()):
            ms, above = found[load, name], top + 20 + place * (_BAR + 2)
            width = max(1.0, ms / slowest * (_WIDTH - _LEFT - _RIGHT))
            parts.append(_bar(_LEFT, above, width, label))
            parts.append(_text(_LEFT + width + 6, above + 11, table.figure(ms), "small"))
    return "\n".join([*parts, "</svg>\n"])


def _bar(left: float, top: float, width: float, label: str) -> str:
    kind = label.split()[0]
    return (
        f'<rect class="{kind}" x="{left}" y="{top}" width="{width:.1f}" height="{_BAR - 2}" '
        f'rx="2"/>'
    )


def _text(left: float, base: float, words: str, kind: str = "") -> str:
    styled = f' class="{kind}"' if kind else ""
    return f'<text{styled} x="{left:.1f}" y="{base}">{escape(words)}</text>'
