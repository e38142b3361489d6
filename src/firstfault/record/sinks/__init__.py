"""Where records go: one file a destination; sinks move bytes and know no records."""
