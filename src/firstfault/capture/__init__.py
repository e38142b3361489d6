"""What runs inside the watched process: boundaries, and the recording of their calls."""
