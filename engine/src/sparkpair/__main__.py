# SPDX-License-Identifier: Apache-2.0
"""`python -m sparkpair`: the same as the console script."""

from __future__ import annotations

import sys

from sparkpair.cli import main

if __name__ == "__main__":
    sys.exit(main())
