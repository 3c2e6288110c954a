"""The name of torchdata, under which its tests find what they import."""
