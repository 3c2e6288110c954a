"""`shmloader bench --headspace`: how fast a step would run if its data were free."""
