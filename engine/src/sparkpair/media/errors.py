# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a picture or a clip, in words for the client that sent it."""

from __future__ import annotations


class MediaError(Exception):
    """A picture or clip that cannot be used. The message says what was found and what is allowed."""
