# SPDX-License-Identifier: Apache-2.0
"""Errors whose text is meant for the person at the terminal: the command line prints them without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something the person can fix. The message says where, what was found and what to do."""

    exit_code = 2
    label = "error"


class DoesNotFit(UserError):
    """The requested window does not fit the memory that is there."""

    exit_code = 3


class PeerLost(UserError):
    """A rank is gone, does not answer, or does not agree; this rank ends too."""

    exit_code = 4
    label = "fatal"
