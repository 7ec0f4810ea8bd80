"""`fleet`: how many servers of which slice serve a traffic."""
