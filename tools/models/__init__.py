"""Checkpoints of others to measure with: fetched by name, checked, never part of this tree."""
