"""Which operators make the numbers wrong: a search over runs of the user's own command.

``precision`` is the procedure, ``trials`` runs and remembers, ``judge`` decides under noise, ``search`` finds the
smallest set, ``backends`` turn a choice of operators into variables, ``probes`` turn a run into numbers.
"""
