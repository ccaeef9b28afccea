# SPDX-License-Identifier: Apache-2.0
"""Makes `ansible_collections.sparkpair.serving` importable: in a checkout, through the link in collections/."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "collections"))
