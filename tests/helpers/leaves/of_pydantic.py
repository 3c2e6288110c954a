"""A model of pydantic, found under its name."""

from typing import Any

import pydantic


class Sample(pydantic.BaseModel):
    """A sample that is checked when it is made."""

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    pixels: Any
    label: int
