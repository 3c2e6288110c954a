"""Waits behind slow samples, beside a loop without any overhead: `python -m bench stalls`."""
