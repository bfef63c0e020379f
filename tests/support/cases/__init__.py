"""Cases of the conformance matrix, a file per group of families; each has a tuple CASES."""
