"""What `demo` and `bench` share: two loaders, the same batches, clocks, a check of every bit."""
