"""Is the stack what its settings say? Expected values, judgement, measurement, evidence, drift."""
