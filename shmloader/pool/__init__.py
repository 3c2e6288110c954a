"""
Any function's results through slots: a `concurrent.futures.Executor` over the transport.

`executor.py` is what people call. `engine.py` sends calls and settles their futures, on whichever
thread leads; `crew.py` are the workers. `call.py` is what goes to one and what comes back if it
fails; `client.py` and `calling.py` are the transport's clients here and there. Nothing here knows
torch.utils.data.
"""
