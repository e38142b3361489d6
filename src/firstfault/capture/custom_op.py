"""Custom operators that are boundaries: registered with ``torch.library``, recorded when called.

    @register_custom_op(op_name="rotate", mutates_args=["x"])
    def rotate(x: torch.Tensor, angle: float) -> None: ...

    torch.ops.sglang.rotate(x, 0.5)

The operators carry a fake implementation, so they stay one node under ``torch.compile``. Signature and
behaviour are those of SGLang's ``register_custom_op``; a parameter without annotation is taken as a tensor.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from firstfault.capture import boundary, contracts
from firstfault.capture.targets import torch_library
from firstfault.errors import FirstFaultError

_UNSET: Any = object()


@dataclass(frozen=True)
class Namespace:
    """Where operators are registered, and how their calls are named.

    Attributes:
        library: the ``torch.ops`` namespace.
        prefix: what comes before the operator's name in a record.
    """

    library: str
    prefix: str

    def register_custom_op(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        op_name: str | None = None,
        mutates_args: Sequence[str] | None = None,
        eager: bool = True,
        out_shape: int | str | None = _UNSET,
        fake_impl: Callable[..., Any] | None = _UNSET,
    ) -> Any:
        """Register a function as a custom operator, and make its calls a boundary.

        Args:
            fn: the function; when left out, a decorator is returned.
            op_name: the operator's name, the function's own if left out.
            mutates_args: names of the arguments that it changes in place.
            eager: register now; False waits for the first call.
            out_shape: position or name of the argument that the output is shaped like; with neither this
                nor ``fake_impl`` the operator returns nothing.
            fake_impl: computes the output's shape and dtype from fake tensors.

        Raises:
            FirstFaultError: both ``out_shape`` and ``fake_impl`` were given.
        """
        if out_shape is not _UNSET and fake_impl is not _UNSET:
            raise FirstFaultError("register_custom_op takes out_shape or fake_impl, not both")
        if fn is None:
            return lambda later: self.register_custom_op(
                later,
                op_name=op_name,
                mutates_args=mutates_args,
                eager=eager,
                out_shape=out_shape,
                fake_impl=fake_impl,
            )
        name = op_name or fn.__name__
        shape = None if out_shape is _UNSET else out_shape
        fake = _fake_like(fn, name, shape, None) if fake_impl is _UNSET else fake_impl
        returns = torch.Tensor if fake_impl is not _UNSET or shape is not None else None

        def register() -> Callable[..., Any]:
            self._define(name, fn, mutates_args or (), fake, returns)
            return self.debug_torch_op(fn, name)

        return register() if eager else _deferred(fn, register)

    def register_custom_op_from_extern(
        self,
        fn: Callable[..., Any],
        *,
        op_name: str | None = None,
        mutates_args: Sequence[str] | None = None,
        out_shape: int | str | None = None,
        out_dtype: torch.dtype | None = None,
        fake_impl: Callable[..., Any] | None = None,
        computed_args: dict[str, Callable[..., Any]] | None = None,
    ) -> Callable[..., Any]:
        """Register another library's function as a custom operator, and make its calls a boundary.

        Args:
            fn: the function, with annotations that ``torch.library.infer_schema`` takes.
            op_name, mutates_args, fake_impl: as for ``register_custom_op``.
            out_shape: position or name of the argument that the output is shaped like.
            out_dtype: the output's dtype where it is not that argument's.
            computed_args: arguments that the operator does not have, computed from the others by name.

        Raises:
            FirstFaultError: both ``out_shape`` and ``fake_impl`` were given.
        """
        if out_shape is not None and fake_impl is not None:
            raise FirstFaultError("register_custom_op_from_extern takes out_shape or fake_impl, not both")
        name = op_name or fn.__name__
        if computed_args:
            fn = _without_computed(fn, computed_args)
        fake = fake_impl or _fake_like(fn, name, out_shape, out_dtype)
        returns = torch.Tensor if fake_impl is not None or out_shape is not None else None
        self._define(name, fn, mutates_args or (), fake, returns)
        return self.debug_torch_op(fn, name)

    def debug_torch_op(self, op_func: Callable[..., Any], op_name: str) -> Callable[..., Any]:
        """The registered operator ``op_name`` as a boundary; itself at level 0.

        Args:
            op_func: the function behind it; a boundary already if it is marked so.
            op_name: its name in this namespace.
        """
        return operator_boundary(self.library, op_name, op_func, f"{self.prefix}.{op_name}")

    def _define(
        self,
        name: str,
        fn: Callable[..., Any],
        mutates: Sequence[str],
        fake: Callable[..., Any] | None,
        returns: type | None,
    ) -> None:
        """Define the operator unless the name is taken, as in an engine that is set up twice."""
        key = f"{self.library}::{name}"
        if key in _registered or hasattr(getattr(torch.ops, self.library), name):
            if _code(_registered.get(key, fn)) is not _code(fn):
                warnings.warn(f"{key} is registered already; the first registration stays", stacklevel=4)
            return
        schema = torch.library.infer_schema(_annotated(fn, returns), mutates_args=mutates)
        library = _library(self.library)
        library.define(name + schema)
        library.impl(name, fn, "CompositeExplicitAutograd")
        if fake is not None:
            library._register_fake(name, fake)
        _registered[key] = fn


LLM = Namespace("sglang", "sglang.custom_op")
DIFFUSION = Namespace("sglang", "diffusion.custom_op")
_registered: dict[str, Any] = {}
"""The function behind each operator that was registered here, or elsewhere and made a boundary here."""


def debug_torch_op(op_func: Callable[..., Any], op_name: str, *, namespace: str = "sglang") -> Callable[..., Any]:
    """The operator ``torch.ops.<namespace>.<op_name>`` as a boundary; itself at level 0."""
    return Namespace(namespace, f"{namespace}.custom_op").debug_torch_op(op_func, op_name)


def operator_boundary(
    library: str, op_name: str, op_func: Callable[..., Any], name: str, target: str = boundary.TARGET
) -> Callable[..., Any]:
    """The operator ``torch.ops.<library>.<op_name>`` as a boundary; itself at level 0.

    Args:
        library: its namespace.
        op_name: its name there.
        op_func: the function behind it; a boundary already if it is marked so.
        name: the name that its calls are recorded under.
        target: what attaches the boundary.
    """
    packet: Any = getattr(getattr(torch.ops, library), op_name)
    if getattr(op_func, boundary.WRAPPED, False) or not boundary.enabled():
        return packet  # type: ignore[no-any-return]
    _registered.setdefault(f"{library}::{op_name}", op_func)
    overloads = [getattr(packet, name) for name in packet.overloads()]  # now attributes that the boundary takes on
    run = torch_library.unrecorded(packet)
    wrapped = boundary.wrap(packet, name, target, mutates=written_arguments(overloads), run=run)
    contracts.know(name, parameters(overloads))
    return wrapped


def parameters(overloads: list[Any]) -> tuple[str, ...]:
    """The names of an operator's parameters, as the first of its overloads has them."""
    return tuple(argument.name for overload in overloads[:1] for argument in overload._schema.arguments)


def written_arguments(overloads: list[Any]) -> frozenset[int | str]:
    """Positions and names of the arguments that an operator's schema declares written to."""
    return frozenset(
        place
        for overload in overloads
        for index, argument in enumerate(overload._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for place in (index, argument.name)
    )


def function_behind(name: str) -> Callable[..., Any] | None:
    """The Python function that an operator was registered with, if known here or to ``torch.library.custom_op``.

    Args:
        name: its qualified name, ``sglang::rotate``.
    """
    if name in _registered:
        return _registered[name]  # type: ignore[no-any-return]
    from torch._library import custom_ops

    defined = next((found for found in list(custom_ops.OPDEFS.values()) if found._qualname == name), None)
    return getattr(defined, "_init_fn", None)


def _code(fn: Callable[..., Any]) -> object:
    """What tells one function from another even when its module is executed twice."""
    fn = inspect.unwrap(fn)
    return getattr(fn, "__code__", fn)


@functools.cache
def _library(name: str) -> torch.library.Library:
    """The fragment that the operators of a namespace live as long as."""
    return torch.library.Library(name, "FRAGMENT")


def _deferred(fn: Callable[..., Any], register: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    registered: Callable[..., Any] | None = None

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal registered  # not functools.cache, which torch.compile traces past
        if registered is None:
            registered = register()
        return registered(*args, **kwargs)

    return call


def _fake_like(
    fn: Callable[..., Any], name: str, out_shape: int | str | None, out_dtype: torch.dtype | None
) -> Callable[..., Any]:
    """A fake implementation whose output is shaped like one of the arguments."""
    signature = inspect.signature(fn)

    def fake(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        if out_shape is None:
            return None
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            like = bound.args[out_shape] if isinstance(out_shape, int) else bound.arguments[out_shape]
        except (IndexError, KeyError):
            raise RuntimeError(f"{name} has no argument {out_shape!r}; its signature is {signature}") from None
        if out_dtype is None:
            return torch.empty_like(like)
        return torch.empty(like.shape, dtype=out_dtype, device=like.device)

    return fake


def _without_computed(fn: Callable[..., Any], computed: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """``fn`` without the arguments that are computed from the others."""
    signature = inspect.signature(fn)
    kept = [parameter for name, parameter in signature.parameters.items() if name not in computed]
    reduced = signature.replace(parameters=kept)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = reduced.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        return fn(**given, **{name: compute(**given) for name, compute in computed.items()})

    call.__signature__ = reduced  # type: ignore[attr-defined]
    call.__annotations__ = {name: annotation for name, annotation in fn.__annotations__.items() if name not in computed}
    return call


def _annotated(fn: Callable[..., Any], returns: type | None) -> Callable[..., Any]:
    """``fn`` with the annotations that ``infer_schema`` needs where it has none."""
    signature = inspect.signature(fn, eval_str=True)
    empty = inspect.Parameter.empty
    parameters = [
        parameter.replace(annotation=_guess(parameter.default)) if parameter.annotation is empty else parameter
        for parameter in signature.parameters.values()
    ]
    result = returns if signature.return_annotation is empty else signature.return_annotation

    def prototype(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("only its signature is used")

    prototype.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=result
    )
    return prototype


def _guess(default: Any) -> Any:
    """The type of a parameter without annotation, from its default value."""
    if default is inspect.Parameter.empty:
        return torch.Tensor
    if isinstance(default, (bool, int, float, str, torch.dtype)):
        return type(default)
    return torch.Tensor | None
