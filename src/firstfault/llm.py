"""Custom operators of language models, recorded as ``sglang.custom_op.<name>``.

from firstfault.llm import register_custom_op
"""

from firstfault.capture.custom_op import LLM

__all__ = ["register_custom_op", "register_custom_op_from_extern"]

register_custom_op = LLM.register_custom_op
register_custom_op_from_extern = LLM.register_custom_op_from_extern
