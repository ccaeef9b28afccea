# SPDX-License-Identifier: Apache-2.0
"""Reference kernels in plain PyTorch: any device, any dtype, written to be read beside the formulas they implement.

One file per block of the model. Shapes use T rows (tokens), d hidden width, H heads, D head width. Names in parentheses
refer to the parts of the architecture: hyper-connections, KDA (linear attention), DSA (latent attention with an
indexer), mixture of experts.
"""

from __future__ import annotations
