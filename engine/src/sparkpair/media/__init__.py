# SPDX-License-Identifier: Apache-2.0
"""Pictures and clips on their way into a prompt: decoded, fitted to a canvas, cut into patches."""
