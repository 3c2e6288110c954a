"""One way in a process of its own; see ways.py."""

import sys

from bench.questions.deep.ways import main

main(sys.argv[1])
