"""Find whether anything fits, and the largest batch and context that do (`fits`)."""
