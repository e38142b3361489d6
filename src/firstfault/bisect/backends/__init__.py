"""How operators are switched, one file a plugin: a choice of operators becomes environment variables."""
