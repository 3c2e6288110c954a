"""What a list of records costs beside workers: memory, start, reads, and files."""
