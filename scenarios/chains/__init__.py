"""Faults on a GPU, each with the chain of evidence that it should lead to."""
