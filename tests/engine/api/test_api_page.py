# SPDX-License-Identifier: Apache-2.0
"""docs/api.md has every field that the routes read, and is what its script writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "api_page.py"


def test_page_has_every_field_and_is_fresh() -> None:
    checked = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
