"""What runs in a worker: fetch, collate into the slot, commit."""
