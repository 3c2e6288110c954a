"""
What runs in the training process: torch's scheduling over our transport.

`service.py` makes the iterators of a loader and is called by dataloader.py and serving.py. They are
`iterator.py`, over worker processes, and `single.py`, without any. `epoch.py` is the epoch that an
iterator is in, `parts.py` what is attached to it, `ways_out.py` how its batches get to the user.

`transport.py` sends requests and receives answers (`requests.py`, `received.py`, `budget.py`).
`workers.py` keeps the processes alive (`healing.py`), and `waiting.py` waits for both.
"""
