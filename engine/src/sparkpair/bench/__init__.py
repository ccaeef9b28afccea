# SPDX-License-Identifier: Apache-2.0
"""`sparkpair bench`: measures any OpenAI-compatible server from outside, with the standard library alone."""
