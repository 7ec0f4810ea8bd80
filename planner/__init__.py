"""The planner: enumeration of layouts, search, the plan file, and the questions built on it."""
