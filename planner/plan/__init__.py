"""A plan: a layout with its numbers, how it is priced without the search, and the file that holds it."""
