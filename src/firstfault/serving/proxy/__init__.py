"""A recording proxy in front of any OpenAI-compatible server: everything passes through unchanged, requests are saved."""
