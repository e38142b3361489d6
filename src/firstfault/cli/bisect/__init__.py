"""Search what makes a difference, by running a command again and again."""

from firstfault.cli.bisect import precision

COMMANDS = (precision,)
