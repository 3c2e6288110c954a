"""
Start, watch and end processes, and the nursery that forks replacements.

Nothing here knows of batches, slots or rings.
"""
