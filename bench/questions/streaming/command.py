"""
Pictures from an HTTP server that waits before each answer: few workers, many, and threads.

    python -m bench streaming
    python -m bench streaming --quick

Every row runs in a process of its own; every batch is compared with a plain loop's. glibc keeps
what the step frees in all of them: whether it does so by itself is chance, and else a step takes up
to twice its time for pages of the kernel.
"""

import tempfile
from collections.abc import Iterator
from functools import partial

from bench.driver import alone
from bench.loads.jpegs import DISTINCT, make_jpegs
from bench.question import Options, Question, number, quick, several
from bench.questions.streaming.run import right_checksums, run
from bench.questions.streaming.server import serving

_DOWNLOADED = "torch, 2 workers, downloaded first"
_ROWS = {
    "torch, 2 workers": partial(run, "torch", 2),
    "torch, 8 workers, prefetch 8": partial(run, "torch", 8, prefetch=8),
    _DOWNLOADED: partial(run, "torch", 2),
    "ours, as many workers as pay": partial(run, "ours", "auto", epochs=3),
    "ours, 2 workers, 8 threads": partial(run, "ours", 2, threads=8, epochs=3),
    "ours, 2 workers, 32 threads": partial(run, "ours", 2, threads=32, epochs=3),
}
_KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "268435456", "MALLOC_MMAP_THRESHOLD_": "33554432"}
_LONGEST_S = 120


def _records(options: Options) -> Iterator[dict]:
    """Yield a row for each way to load; it is right if all batches were."""
    right = right_checksums(options.pictures)
    given = {"latency_ms": options.latency, "count": options.pictures}
    with serving(make_jpegs(DISTINCT)) as port:
        for name in options.row or _ROWS:
            with tempfile.TemporaryDirectory() as folder:
                more = {**given, "folder": folder} if name == _DOWNLOADED else given
                ran = alone(partial(_ROWS[name], port=port, **more), _LONGEST_S, **_KEEPS_MEMORY)
            seconds = [epoch["seconds"] for epoch in ran["epochs"]]
            yield {
                "loader": name,
                "download, s": ran["download_s"] if name == _DOWNLOADED else None,
                "first epoch, s": seconds[0],
                "best of two later ones, s": min(seconds[1:], default=None),
                "batches/s": len(right) / min(seconds[-2:]),
                "correct": all(epoch["checksums"] == right for epoch in ran["epochs"]),
            }


QUESTION = Question(
    _records,
    {
        "row": several(_ROWS),
        "pictures": number(999, "in an epoch"),
        "latency": number(20.0, "the server's, in ms"),
        "quick": quick("pictures", 320, "320 pictures"),
    },
)
