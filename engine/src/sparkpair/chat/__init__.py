# SPDX-License-Identifier: Apache-2.0
"""Text on one side, token ids on the other: templates, tokenizer, and what turns a reply's ids back into
text.
"""
