"""Records, logs and dumps → what happened, call by call."""
