"""The option that `top` and `stacks` share."""

from __future__ import annotations

import click

from shmloader.metrics.live import HANGS_AFTER_S

hangs_after = click.option(
    "--hangs-after",
    "hangs_after_s",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    default=HANGS_AFTER_S,
    show_default=True,
    help="A worker hangs if a sample takes it longer than this, and 20 times as long as usual.",
)
