"""Skills for coding agents: how to find a fault with these commands."""

from firstfault.cli.skills import install

COMMANDS = (install,)
