"""Does `report()` name the cause, and does its advice help? Loads of which both are known."""
