"""What happened → findings."""
