"""Starting, watching and ending processes; nothing here knows of batches."""
