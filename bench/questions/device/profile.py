"""What the device did, as CUPTI tells: its copies, and when it ran no kernel."""

from dataclasses import dataclass
from pathlib import Path

import torch

from bench.report.strips import strips

Span = tuple[float, float]  # begin and end, in microseconds


@dataclass(frozen=True)
class Profile:
    """
    Spans of a profiled loop.

    Attributes:
        copies: Of copies from the host.
        kernels: Of kernels, in the order of their begins.
    """

    copies: list[Span]
    kernels: list[Span]

    @classmethod
    def read(cls, profiler: torch.profiler.profile) -> "Profile":
        """Take what a profiler has recorded."""
        copies, kernels = [], []
        for event in profiler.events() or ():
            if event.device_type != torch.autograd.DeviceType.CUDA:
                continue
            span = (event.time_range.start, event.time_range.end)
            if event.name.startswith("Memcpy HtoD"):
                copies.append(span)
            elif not event.name.startswith("Mem"):
                kernels.append(span)
        return cls(sorted(copies), sorted(kernels))

    def rate(self, payload_bytes: int) -> float:
        """The rate of the copies while they ran, in GB/s, if they moved so many bytes."""
        return payload_bytes / 1e3 / max(sum(end - begin for begin, end in self.copies), 1e-9)

    @property
    def idle(self) -> list[Span]:
        """When no kernel ran, between the first and the last."""
        gaps, last = [], self.kernels[0][1] if self.kernels else 0.0
        for begin, end in self.kernels:
            if begin > last:
                gaps.append((last, begin))
            last = max(last, end)
        return gaps

    @property
    def idle_share(self) -> float:
        """The part of the time in which no kernel ran."""
        if not self.kernels:
            return 1.0
        whole = max(end for _, end in self.kernels) - self.kernels[0][0]
        return sum(end - begin for begin, end in self.idle) / max(whole, 1e-9)


def draw(profiles: dict[str, Profile], path: Path, shown_us: float = 300_000) -> None:
    """Draw a strip for each loop: its kernels, its copies, and the gaps between the kernels."""
    size = (9, 1.2 * len(profiles) + 1)
    with strips(path, len(profiles), 1, size, "ms", "", True) as all_:
        for axes, (name, profile) in zip(all_, profiles.items(), strict=True):
            first = profile.kernels[0][0] if profile.kernels else 0.0
            rows = ((profile.kernels, 1, "#0071bc"), (profile.copies, 0, "#c1272d"))
            for spans, row, colour in rows:
                bars = [
                    ((begin - first) / 1e3, (end - begin) / 1e3)
                    for begin, end in spans
                    if begin - first < shown_us
                ]
                axes.broken_barh(bars, (row, 0.8), color=colour)
            axes.set_yticks([0.4, 1.4], ["copies", "kernels"])
            axes.set_title(f"{name}: idle {profile.idle_share:.1%}", loc="left", fontsize=10)
