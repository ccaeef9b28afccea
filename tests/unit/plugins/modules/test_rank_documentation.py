# SPDX-License-Identifier: Apache-2.0
"""The documentation of every module can be read, and its examples use options that exist."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

MODULES = sorted((Path(__file__).resolve().parents[4] / "plugins" / "modules").glob("*.py"))


def blocks(path: Path) -> dict[str, Any]:
    """The documentation blocks of a module, parsed."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("DOCUMENTATION", "EXAMPLES", "RETURN"):
                found[name] = yaml.safe_load(ast.literal_eval(node.value))
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_examples_use_the_options_that_are_documented(path: Path):
    found = blocks(path)
    options = found["DOCUMENTATION"]["options"]
    required = {name for name, option in options.items() if option.get("required")}
    used = [task[key] or {} for task in found["EXAMPLES"] for key in task if key == f"sparkpair.serving.{path.stem}"]
    assert used
    for arguments in used:
        assert required <= set(arguments) <= set(options)
    assert {"check_mode", "diff_mode"} <= set(found["DOCUMENTATION"]["attributes"])
