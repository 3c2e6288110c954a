"""Types of options that click does not have."""

from __future__ import annotations

import math
from typing import Any

import click


class Seconds(click.FloatRange):
    """A duration: a number in a range that is one, and finite, which click's own need not be."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse an argument."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number of seconds.", param, ctx)
        return number
