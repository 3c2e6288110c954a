"""Is it the same as torch's DataLoader?"""
