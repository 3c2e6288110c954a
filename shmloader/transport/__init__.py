"""
Requests out, answers in: what a client has of its worker processes, in the training process.

`transport.py` is the door: a client sends requests and takes answers, which `requests.py` and
`received.py` keep on their way. `budget.py` says how many slots and bytes there are, and what is
copied out of them. `workers.py` keeps the processes alive, with `healing.py`, and
`waiting.py` waits for both.

`client.py` is what is asked of a client; the DataLoader's is in trainer/ (`tasks.py`, `client.py`).
Nothing here knows a dataset, a sampler or an epoch.
"""
