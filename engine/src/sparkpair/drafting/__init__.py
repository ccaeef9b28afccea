# SPDX-License-Identifier: Apache-2.0
"""Drafts: cheap guesses at the next tokens, verified by the model in one window. They propose and never decide."""
