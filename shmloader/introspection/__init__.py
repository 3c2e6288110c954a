"""What people and frameworks ask of a loader: its repr, its report, and what wraps it."""
