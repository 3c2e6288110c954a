"""`shmloader demo`: training on photographs, then large batches, torch's loader beside ours."""
