"""Define a plan, a layout with its numbers: its pricing without the search, and the file that stores it."""
