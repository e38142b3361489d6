"""A recording proxy in front of an OpenAI-compatible server: everything passes through, requests are saved."""
