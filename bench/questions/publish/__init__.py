"""One loader for several trainers: what it gives, and what becomes of it as processes die."""
