"""What boundaries are attached to without a change to the program: one file a library."""
