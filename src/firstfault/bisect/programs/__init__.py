"""What a bisection runs, one file a kind: a script, or a server with requests."""
