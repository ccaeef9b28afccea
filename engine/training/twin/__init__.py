# SPDX-License-Identifier: Apache-2.0
"""The model once more, differentiable and for whole batches: the same names and formulas as the engine's modules.

Tests hold it against the engine: the same weights give the same logits.
"""
