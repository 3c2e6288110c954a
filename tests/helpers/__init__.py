"""What tests share: datasets, programs in processes of their own, forged segments, deaths."""
