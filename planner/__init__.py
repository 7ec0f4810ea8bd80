"""Choose the best layout: enumeration, pricing on arrays, proofs, serving and fleets, and the plan file."""
