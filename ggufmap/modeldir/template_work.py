"""How much a chat template does whatever it is asked: loops over what it brings along, and texts that grow by doubling.

An estimate, for templates that are made to keep a server busy. Loops over messages count as one round, and what a macro
that calls itself does depends on its arguments, which nobody knows here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import nodes

_ROUNDS = 100_000


def walk(tree: nodes.Node) -> Iterator[nodes.Node]:
    """Every node, in the template's order, without recursion: a chain of `+` is as deep as it is long."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(list(node.iter_child_nodes())))


def endless_work(tree: nodes.Template) -> Iterator[tuple[int, str]]:
    """Line and text of each thing in `tree` that would take more than 100,000 rounds or doubles a text again and again.

    Raises RecursionError for statements that are nested too deeply.
    """
    from jinja2 import nodes

    everything = list(walk(tree))
    macros = {macro.name: macro for macro in everything if isinstance(macro, nodes.Macro)}
    sizes: dict[str, int] = {}
    for assign in (node for node in everything if isinstance(node, nodes.Assign)):
        if isinstance(assign.target, nodes.Name):
            sizes[assign.target.name] = max(sizes.get(assign.target.name, 0), _size(assign.node, sizes))
        if _doubles(assign):
            yield assign.lineno or 0, "a text that is added to itself"
    rounds = _Rounds(macros, sizes)
    for statement in [*tree.body, *macros.values()]:
        body = statement.body if isinstance(statement, nodes.Macro) else [statement]
        if rounds.of(body) > _ROUNDS:
            yield statement.lineno or 0, f"loops that run more than {_ROUNDS} times"


class _Rounds:
    """Counts the rounds of loops over known sizes, through macros."""

    def __init__(self, macros: Mapping[str, nodes.Macro], sizes: Mapping[str, int]) -> None:
        self._macros, self._sizes = macros, sizes
        self._known: dict[str, int] = {}

    def of(self, body: Iterable[nodes.Node]) -> int:
        """The rounds of some statements."""
        return sum(self._one(node) for node in body)

    def _one(self, node: nodes.Node) -> int:
        from jinja2 import nodes

        if isinstance(node, nodes.Macro):
            return 0  # counted where it is called
        if isinstance(node, nodes.For):
            return _size(node.iter, self._sizes) * (1 + self.of(node.body)) + self.of(node.else_)
        if isinstance(node, nodes.Expr):
            calls = [call.node for call in walk(node) if isinstance(call, nodes.Call)]
            return sum(self._macro(name.name) for name in calls if isinstance(name, nodes.Name))
        return self.of(node.iter_child_nodes())

    def _macro(self, name: str) -> int:
        if name in self._macros and name not in self._known:
            self._known[name] = 0  # what it is while it calls itself
            self._known[name] = self.of(self._macros[name].body)
        return self._known.get(name, 0)


def _size(node: nodes.Node, sizes: Mapping[str, int]) -> int:
    """How often a loop over `node` runs at most, if it is known; else 1."""
    from jinja2 import nodes

    if isinstance(node, nodes.Filter) and node.node is not None:
        return _size(node.node, sizes)
    if isinstance(node, nodes.Name):
        return sizes.get(node.name, 1)
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        return len(node.value)
    if isinstance(node, (nodes.List, nodes.Tuple, nodes.Dict)):
        return len(node.items)
    if isinstance(node, (nodes.Concat, nodes.Add)):
        parts = node.nodes if isinstance(node, nodes.Concat) else [node.left, node.right]
        return sum(_size(part, sizes) for part in parts)
    if isinstance(node, nodes.Mul):
        return max(1, _number(node.left) * _size(node.right, sizes), _size(node.left, sizes) * _number(node.right))
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name == "range":
        return max((_number(argument) for argument in node.args), default=1)
    return 1


def _number(node: nodes.Node) -> int:
    from jinja2 import nodes

    return node.value if isinstance(node, nodes.Const) and isinstance(node.value, int) else 1


def _doubles(assign: nodes.Assign) -> bool:
    """`x = x ~ x`, `ns.x = ns.x + ns.x`, `x = x * 9`."""
    from jinja2 import nodes

    target = _reference(assign.target)
    if isinstance(assign.node, nodes.Mul):
        return target is not None and target in map(_reference, (assign.node.left, assign.node.right))
    parts, waiting = 0, [assign.node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (nodes.Add, nodes.Concat)):
            waiting.extend(node.iter_child_nodes())
        else:
            parts += _reference(node) == target is not None
    return parts > 1


def _reference(node: nodes.Node) -> tuple[str, ...] | None:
    from jinja2 import nodes

    if isinstance(node, nodes.Name):
        return (node.name,)
    if isinstance(node, nodes.NSRef):
        return (node.name, node.attr)
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return (node.node.name, node.attr)
    return None
