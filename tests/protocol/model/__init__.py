"""
The protocol of csrc/ as Promela models, which `python -m tests.protocol.model` checks with SPIN.

Each model is a small program that says beside each step which C function it stands for. A mutation
is a mistake that the model makes when a name is defined: a search that misses them proves nothing.
"""
