"""Other programs: the only room that starts processes."""
