"""One parser an input format."""
