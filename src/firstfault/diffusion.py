"""Custom operators of diffusion models, recorded as ``diffusion.custom_op.<name>``.

from firstfault.diffusion import register_custom_op
"""

from firstfault.capture.custom_op import DIFFUSION

__all__ = ["register_custom_op", "register_custom_op_from_extern"]

register_custom_op = DIFFUSION.register_custom_op
register_custom_op_from_extern = DIFFUSION.register_custom_op_from_extern
