"""
Any function's results through slots: a `concurrent.futures.Executor` over the transport.

`executor.py` is what people call. `engine.py` sends calls and settles their futures, on whichever
thread leads. `call.py` is what goes to a worker and what comes back if it fails, and `calling.py`
is the transport's client in a worker. Nothing here knows torch.utils.data.
"""
