# SPDX-License-Identifier: Apache-2.0
"""Secrets leave no host, whether they are known or only look like one, and the rest stays readable."""

from __future__ import annotations

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils._redact import redact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token hf_abcdefghijklmnop in use", "token (removed) in use"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer (removed)"),
        ('"HF_TOKEN=abc123"', '"HF_TOKEN=(removed)"'),
        ('{"api_key": "abc123", "x": 1}', '{"api_key": "(removed)", "x": 1}'),
        ("DB_PASSWORD=a b", "DB_PASSWORD=(removed) b"),
        ("https://user:pass@registry.example/x", "https://(removed)@registry.example/x"),
        ("the label is ops:known-secret-key", "the label is ops:(removed)"),
    ],
)
def test_a_secret_is_taken_out(text: str, expected: str) -> None:
    assert redact(text, {"known-secret-key"}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "prompt_tokens: 17, completion_tokens: 5",
        "pool_tokens=2922496",
        "--max-tokens 32768",
        "sparkpair_hf_token_file is empty",
        "tokenizer.json sha256 3f0a7d1f6f0c",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text, {"17"}) == text
