"""Pins of vLLM's sources: short digests of those that the plugin was written for."""

from __future__ import annotations

import ast
import hashlib


def digest(source: str | None) -> str:
    """The digest of a source; "" for None."""
    return hashlib.sha256(source.encode()).hexdigest()[:16] if source else ""


def find_definition(tree: ast.AST, name: str) -> ast.AST | None:
    """The class or function with this dotted name."""
    node: ast.AST | None = tree
    for part in name.split("."):
        body = getattr(node, "body", ())
        node = next((inner for inner in body if getattr(inner, "name", None) == part), None)
    return node


def definition_digest(text: str, tree: ast.AST, name: str) -> str:
    """The digest of a definition in the file `text`, parsed as `tree`; "" if it has none."""
    node = find_definition(tree, name)
    return digest(ast.get_source_segment(text, node) if node else None)
