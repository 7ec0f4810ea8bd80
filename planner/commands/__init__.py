"""The commands, and what they share: options, and what is printed."""
