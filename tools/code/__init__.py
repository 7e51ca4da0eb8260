"""The code model: a small language model of Python source, trained from scratch."""
