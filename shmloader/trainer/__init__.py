"""
What runs in the training process: torch's scheduling over our transport.

`service.py` makes the iterators of a loader and is called by dataloader.py and interception.py;
without workers `without_workers.py` is enough, and `chosen.py` takes `without_core.py` where there
are no slots. They are `iterator.py`, over worker processes, and `single.py`, without any.
`epoch.py` is the epoch that an iterator is in, `parts.py` what is attached to it, `deliveries.py`
how its batches get to the user.

The client of the transport is `client.py`, what its workers are, and `tasks.py`, what they are
asked, by what torch knows as queues, and how it is waited for. `running.py` opens and ends all.
"""
