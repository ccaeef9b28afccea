# SPDX-License-Identifier: Apache-2.0
"""How ranks talk: control messages over one TCP connection a rank, tensors through a process group."""
