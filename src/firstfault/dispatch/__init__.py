"""Operator backends in the process: which implementation each operator gets, by what policy, and what it did."""
