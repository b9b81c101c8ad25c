"""Finds assertions of a module that are decided by a clock: of the wall, or of a processor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
"""Functions of `time`, each also with the end `_ns`."""
PROCESSOR_CLOCKS = {"own_cpu_s", "getrusage"}
DEADLINES = {"wait_until", "wait_for", "end_soon", "wait", "closed_within"}
"""Functions that wait for a condition; their clock only ends a wait that would be for ever."""
WHOLE = -1
"""Stands for a returned value that is no tuple, among the positions of tuples."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class TimedModule:
    """The functions of a module, and which of their results and which keys of their dicts hold times.

    A value is timed if it is computed from a clock, from a timed name of its function, from the result of a function
    that returns a timed value, or is read by a key under which any function of the module stores a timed value.
    """

    def __init__(self, module: ast.Module) -> None:
        found = (node for node in ast.walk(module) if isinstance(node, FUNCTIONS))
        self._functions = [function for function in found if function.name not in DEADLINES]
        self._results: dict[str, set[int]] = {}
        self._keys: set[object] = set()
        known = -1
        while known != (known := len(self._keys) + sum(map(len, self._results.values()))):
            for function in self._functions:
                self._learn(function)

    def assertions(self) -> Iterator[tuple[int, str]]:
        """Yield line and function of each `assert`, and of each `if` that raises, whose condition is timed."""
        for function in self._functions:
            names = self._timed_names(function)
            for node in own_nodes(function):
                if decides(node) and self._is_timed(node.test, names):
                    yield node.lineno, function.name

    def _learn(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        names = self._timed_names(function)
        for node in own_nodes(function):
            if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
                values = dict(enumerate(node.value.elts)) if isinstance(node.value, ast.Tuple) else {WHOLE: node.value}
                timed = {position for position, value in values.items() if self._is_timed(value, names)}
                self._results[function.name] = self._results.get(function.name, set()) | timed
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                self._keys |= {key.value for key, value in pairs if is_text(key) and self._is_timed(value, names)}

    def _timed_names(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
        """Names that are assigned a timed value here or in a nested function."""
        assigned = [node for node in ast.walk(function) if isinstance(node, (ast.Assign, ast.AugAssign, ast.NamedExpr))]
        names: set[str] = set()
        known = -1
        while known != (known := len(names)):
            for node in assigned:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    names |= self._timed_targets(target, node.value, names)
        return names

    def _timed_targets(self, target: ast.expr, value: ast.expr, names: set[str]) -> set[str]:
        parts = target.elts if isinstance(target, ast.Tuple) else []
        if parts and isinstance(value, ast.Tuple):
            pairs = zip(parts, value.elts, strict=False)
            return {name for part, one in pairs for name in self._timed_targets(part, one, names)}
        if (
            parts
            and isinstance(value, ast.Call)
            and isinstance(value.func, ast.Name)
            and value.func.id in self._results
        ):
            timed = self._results[value.func.id]
            return {name for position, part in enumerate(parts) if position in timed for name in stored_names(part)}
        return stored_names(target) if self._is_timed(value, names) else set()

    def _is_timed(self, node: ast.AST, names: set[str]) -> bool:
        return any(
            (isinstance(part, ast.Name) and (part.id in names or WHOLE in self._results.get(part.id, ())))
            or is_clock(part)
            or (isinstance(part, ast.Subscript) and is_text(part.slice) and part.slice.value in self._keys)
            for part in ast.walk(node)
        )


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of nested functions."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from own_nodes(child)


def decides(node: ast.AST) -> TypeGuard[ast.Assert | ast.If]:
    return isinstance(node, ast.Assert) or (
        isinstance(node, ast.If) and any(isinstance(line, ast.Raise) for line in node.body)
    )


def is_clock(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in PROCESSOR_CLOCKS
    if not isinstance(node, ast.Attribute):
        return False
    of_time = isinstance(node.value, ast.Name) and node.value.id == "time"
    return node.attr in PROCESSOR_CLOCKS or (of_time and node.attr.removesuffix("_ns") in CLOCKS)


def is_text(node: ast.AST | None) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def stored_names(target: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(target) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
