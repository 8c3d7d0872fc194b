"""Plays docs/library.ipynb, cell by cell, as Jupyter would: ``python docs/notebook.py`` writes what it prints anew."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any, Final

NOTEBOOK: Final = Path(__file__).parent / "library.ipynb"


def played(notebook: Path) -> str:
    """The notebook's text, with what its cells print now. They are run in the current folder, in one namespace."""
    found: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in found["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        lines = printed.getvalue().splitlines(keepends=True)
        stream = {"name": "stdout", "output_type": "stream", "text": lines}
        cell["execution_count"], cell["outputs"] = number, [stream] if lines else []
    return json.dumps(found, indent=1) + "\n"


def main() -> int:
    """Write the notebook with what it prints."""
    with contextlib.chdir(NOTEBOOK.parent):
        text = played(NOTEBOOK)
    NOTEBOOK.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
