"""Small programs for C11's memory model, and a checker of all their executions."""
