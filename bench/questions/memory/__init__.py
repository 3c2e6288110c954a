"""How little memory a run needs, beside torch's, and what all of its processes take over time."""
