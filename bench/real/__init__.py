"""
Five real trainings, with torch's loader and with ours: `python -m bench real`.

A training's steps take time, and so does fetching its samples: what a faster loader gains is less
than in the comparison of loaders beside it, where both cost nothing.
"""
