"""Programs that were much worse than with torch, both in one run."""
