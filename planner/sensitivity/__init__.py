"""Search again at changed hardware numbers, and report what changes (`sensitivity`)."""
