"""What runs in the training process: torch's scheduling over our transport."""
