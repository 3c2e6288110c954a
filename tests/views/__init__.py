"""Is what is shown of a running loader true: to a stranger, in a terminal, as a trace?"""
