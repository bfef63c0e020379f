"""From tensors to checkpoint names to parameters: the resolver and the Plan."""

from ggufmap.mapping.join import join_trace
from ggufmap.mapping.layout import Layout, layout
from ggufmap.mapping.plan import Plan, Role
from ggufmap.mapping.resolver import resolve

__all__ = ["Layout", "Plan", "Role", "join_trace", "layout", "resolve"]
