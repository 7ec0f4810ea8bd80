"""The search: every layout of one slice, priced as tables and joined exactly."""
