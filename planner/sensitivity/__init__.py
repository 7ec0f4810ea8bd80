"""`sensitivity`: the search again at changed hardware numbers."""
