"""A plugin of mypy's that notes which attributes of which classes are read, and in which modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from mypy.checker import TypeChecker
from mypy.nodes import MemberExpr
from mypy.plugin import AttributeContext, Plugin
from mypy.types import Type

READ: defaultdict[str, set[str]] = defaultdict(set)
"""The modules that read an attribute, which is named in full: ``module.Class.attribute``."""


class Reading(Plugin):
    """Notes each attribute of a class of the project's where it is read."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """A hook that notes who reads and changes nothing."""
        if not fullname.startswith("leasekit."):
            return None

        def note(context: AttributeContext) -> Type:
            assert isinstance(context.api, TypeChecker), "attributes are read in checked code"
            if isinstance(context.context, MemberExpr):  # not the definition itself
                READ[fullname].add(context.api.tree.fullname)
            return context.default_attr_type

        return note


def plugin(version: str) -> type[Plugin]:
    """What mypy asks a plugin's module for."""
    return Reading
