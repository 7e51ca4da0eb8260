"""Tasks of real use on checkpoints of others, asked of a running server under several policies."""
