"""The readers of a program that need no device: cost and memory."""
