"""Findings → text, Markdown, JSON."""
