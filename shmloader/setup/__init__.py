"""What has to be there before the package runs, and which of its components are."""
