# SPDX-License-Identifier: Apache-2.0
"""Training of the miniature that answers: data, tokenizer, a differentiable twin of the engine's model, export, scores.

Not part of the engine's package: `engine/training/README.md` says how it is run.
"""
