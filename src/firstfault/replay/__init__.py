"""Rebuild one recorded call, run it again in a process of its own, and say whether it does what it did."""
