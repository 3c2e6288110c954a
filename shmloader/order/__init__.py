"""
What is asked next, in the trainer: the requests of an iterator's sampler, and its place in them.

`order.py` is what torch knows as the iterator's index sampler. `planning.py` draws torch's own
samplers as arrays, and `samplers.py` knows which they are. `resuming/` is optional: it notes where
a loader is, and goes on from there. The iterators of trainer/ call both: torch's scheduling draws
from the Order, and a Place is one of an iterator's parts.
"""
