"""Random sequences of faults against the operator, with invariants checked after each fault."""
