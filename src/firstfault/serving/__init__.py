"""Talking to a server over HTTP."""
