"""One row in a process of its own; see run.py."""

import sys

from bench.questions.caching.run import main

main(sys.argv[1])
