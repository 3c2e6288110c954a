"""A class of attrs, found under its name."""

from typing import Any

import attrs


@attrs.define
class Sample:
    """A sample with slots."""

    pixels: Any = attrs.field(eq=False)
    label: int
