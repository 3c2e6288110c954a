"""One row in a process of its own; see run.py."""

import sys

from bench.questions.streaming.run import main

main(sys.argv[1])
