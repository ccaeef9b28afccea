# SPDX-License-Identifier: Apache-2.0
"""The documentation of every module can be read, and its examples use options that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from scripts.docs import ROOT, docs_of

MODULES = sorted((ROOT / "plugins" / "modules").glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_examples_use_the_options_that_are_documented(path: Path):
    found = docs_of(path)
    options = found["DOCUMENTATION"]["options"]
    required = {name for name, option in options.items() if option.get("required")}
    tasks = yaml.safe_load(found["EXAMPLES"])
    used = [task[key] or {} for task in tasks for key in task if key == f"sparkpair.serving.{path.stem}"]
    assert used
    for arguments in used:
        assert required <= set(arguments) <= set(options)
    assert {"check_mode", "diff_mode"} <= set(found["DOCUMENTATION"]["attributes"])
