# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a sequence between steps."""
