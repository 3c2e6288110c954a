"""
What copies cost: the source of a threshold in csrc/copy.h and of a figure in docs/gpu.md.

Results are checked once per benchmark, outside of the timing. Each run compiles `../native` and
csrc/copy.c with the machine's C compiler.
"""
