# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: reading slices, splitting between ranks, and writing the miniature."""
