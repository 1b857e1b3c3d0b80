"""Run the recipes of a page, each as one program in a process of its own: ``make test-pretrained``.

They need libraries that the other tests do not have, and download nothing: networks are tiny and random.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def recipes(page: Path) -> dict[str, str]:
    """Return the code of a page by the heading that it stands under."""
    parts = re.split(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {}
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        code = "\n".join(re.findall(r"^```python\n(?!>>>)(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
        if code:
            found[heading] = code
    return found


def check_torchvision() -> None:
    """Say so where torch and torchvision come from different places, which no import explains."""
    try:
        importlib.import_module("torchvision")
    except (RuntimeError, OSError) as error:
        torch = importlib.metadata.version("torch")
        sys.exit(f"torchvision here is not built for torch {torch}: {error}. Install both from one place.")


def main(page: Path) -> int:
    check_torchvision()
    failed = []
    for heading, code in recipes(page).items():
        print(f"== {heading}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "recipe.py"
            program.write_text(code, encoding="utf-8")
            if subprocess.run([sys.executable, str(program)], check=False).returncode:
                failed.append(heading)
    print(f"failed: {', '.join(failed)}" if failed else "all recipes ran")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
