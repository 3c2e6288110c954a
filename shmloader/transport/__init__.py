"""
Requests out, answers in: what a client has of its worker processes, in the training process.

`transport.py` is the door: a client sends requests and takes answers, which `requests.py` and
`received.py` keep on their way. `budget.py` says how many slots and bytes there are, and what is
copied out of them. The only client is the DataLoader's, `trainer/tasks.py`.

It knows no dataset, no sampler and no epoch.
"""
