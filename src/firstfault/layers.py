"""``CustomOp``, by the policy of operator backends where the environment has one.

from firstfault import CustomOp
"""

from firstfault.capture.multi_platform import CustomOp
from firstfault.dispatch import policy

__all__ = ["CustomOp"]

if policy.current().active:
    from firstfault.dispatch import program

    program.start()
