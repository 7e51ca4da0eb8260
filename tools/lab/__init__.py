"""The laboratory: sparse-attention systems side by side, on any model folder."""
