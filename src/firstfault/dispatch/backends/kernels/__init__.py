"""Triton kernels of the operators, for any chip that Triton has a compiler for, and for its interpreter."""
