"""What others claim, played again beside ours: `python -m bench claims`."""
