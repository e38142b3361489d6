"""What is looked at in a run, one file a kind: ``--probe logprobs:out.npz``.

A probe reads one run's output, and says how far two outputs are from each other: 0 for the same, infinite where one
is not finite and the other is.
"""
