"""How a policy reaches the layers of a program that knows nothing of it, one module for each program."""
