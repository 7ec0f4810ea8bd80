"""`validate`: predictions beside published measurements."""
