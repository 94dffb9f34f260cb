"""Which modules the tests cover too little, and which errors none of them provokes.

Reads the data of `coverage combine`; run by ``make coverage``.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from coverage import Coverage

LEAST = 85.0  # percent of a module's lines


def untested(path: Path, ran: set[int]) -> Iterator[str]:
    """Yield the raise statements of a file that never ran."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and node.lineno not in ran:
            words = ast.unparse(node)
            if "SystemExit" not in words:
                yield f"{path}:{node.lineno}: {words[:100]}"


def main() -> int:
    """Print both lists; return 1 if one of them has an entry."""
    coverage = Coverage()
    coverage.load()
    data, low, silent = coverage.get_data(), [], []
    for name in sorted(data.measured_files()):
        path = Path(name)
        if path.exists():
            _, lines, _, missed, _ = coverage.analysis2(name)
            share = 100.0 * (1.0 - len(missed) / max(len(lines), 1))
            if share < LEAST:
                low.append(f"{share:5.1f} %  {path}")
            silent += untested(path, set(data.lines(name) or ()))
    sys.stdout.write("\n".join([f"modules under {LEAST:g} %:", *sorted(low), ""]))
    sys.stdout.write("\n".join(["errors that no test provokes:", *silent, ""]))
    return int(bool(low or silent))


if __name__ == "__main__":
    raise SystemExit(main())
