"""Which choice is best: enumeration, pricing on arrays, the plan file, the report."""
