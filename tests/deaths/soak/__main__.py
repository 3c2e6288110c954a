"""Run the soak: `python -m tests.deaths.soak`."""

from __future__ import annotations

import sys

from tests.deaths import soak

if __name__ == "__main__":
    sys.exit(soak.main(sys.argv[1:]))
