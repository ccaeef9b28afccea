# SPDX-License-Identifier: Apache-2.0
"""The HTTP side: requests in the OpenAI dialect, checked, rendered, given to an engine, and its events told
as replies.
"""
