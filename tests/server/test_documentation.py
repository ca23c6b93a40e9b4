"""The commands of the documentation work as they are printed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.service import Api

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs/service.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_commands_of_the_service_run(api: Api, tmp_path: Path) -> None:
    blocks = [block for block in BLOCK.findall(DOCUMENT.read_text()) if not block.startswith("make ")]
    assert len(blocks) >= 6
    # one shell for all, since later blocks use what earlier ones found; a line of its own after each
    script = "\necho '\n--'\n".join(blocks).replace("http://127.0.0.1:8000", api.url)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, query, plan, load, versions = (part.strip() for part in done.stdout.split("\n--\n"))
    assert json.loads(query)["rows"] == [["bob", "7.25"], ["ann", "10.50"]]
    for told in (json.loads(plan), json.loads(load)):
        assert (told["inserted"], told["updated"], told["deleted"]) == (1, 1, 0)
    assert '"version":2' in versions.replace(" ", "")
    assert api.rows("SELECT count(*) FROM datasets.q1_sales") == [[2]]
