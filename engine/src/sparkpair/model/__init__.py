# SPDX-License-Identifier: Apache-2.0
"""The `glm5_next` forward pass: configuration, layers, and the whole model of one rank."""
