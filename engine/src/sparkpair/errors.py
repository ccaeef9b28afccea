# SPDX-License-Identifier: Apache-2.0
"""Errors that a person can fix: the command line prints the message alone and ends with the exit code."""

from __future__ import annotations


class UserError(Exception):
    """Something outside the program is wrong: an argument, a file, a port that is taken.

    The message stands alone: it says what was looked for, where, what was found and what to do.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
