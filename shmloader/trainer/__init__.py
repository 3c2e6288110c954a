"""
What runs in the training process: torch's scheduling over our transport.

`service.py` makes the iterators of a loader and is called by dataloader.py and serving.py. They are
`iterator.py`, over worker processes, and `single.py`, without any. `epoch.py` is the epoch that an
iterator is in, `parts.py` what is attached to it, `ways_out.py` how its batches get to the user.

`tasks.py` is the client of the transport, `queues.py` what torch knows as queues over it.
`workers.py` keeps the processes alive (`healing.py`), `waiting.py` waits for both, and `running.py`
opens and ends all of that.
"""
