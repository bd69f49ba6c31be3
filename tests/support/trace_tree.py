"""Spans of a trace file, as a tree: `python tests/support/trace_tree.py spans.jsonl [trace id]`."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Node:
    """A span: where it lies in the tree, and what was recorded."""

    depth: int
    span: dict[str, Any]

    @property
    def label(self) -> str:
        return f"{self.span['process']}: {self.span['name']}"


def spans(path: Path) -> list[dict[str, Any]]:
    """Return what is in the file, in the order of time."""
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(found, key=lambda span: span["begun_ns"])


def tree(found: Sequence[dict[str, Any]], trace: str) -> list[Node]:
    """Return one trace's spans, children under their parents; a parent that is not there makes a root."""
    ours = [span for span in found if span["trace"] == trace]
    known = {span["span"] for span in ours}

    def under(parent: str | None, depth: int) -> Iterator[Node]:
        for span in ours:
            above = span["parent"] if span["parent"] in known else None
            if above == parent:
                yield Node(depth, span)
                yield from under(span["span"], depth + 1)

    return list(under(None, 0))


def drawn(nodes: Sequence[Node]) -> str:
    """Return the tree as text: when each span began after the first, and how long it took, ms."""
    start = nodes[0].span["begun_ns"]
    return "\n".join(
        f"{(node.span['begun_ns'] - start) / 1e6:9.1f} ms {'  ' * node.depth}{node.label}"
        f"  {(node.span['ended_ns'] - node.span['begun_ns']) / 1e6:.1f} ms  {node.span['attributes']}"
        for node in nodes
    )


def main() -> int:
    """Draw one trace of a file, or all of them; return 1 when there is none."""
    found = spans(Path(sys.argv[1]))
    traces = sys.argv[2:] or list(dict.fromkeys(span["trace"] for span in found))
    nodes = {trace: tree(found, trace) for trace in traces}
    for trace, tree_ in nodes.items():
        if tree_:
            sys.stdout.write(f"{trace}\n{drawn(tree_)}\n")
    return int(not any(nodes.values()))


if __name__ == "__main__":
    sys.exit(main())
