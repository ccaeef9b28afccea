# SPDX-License-Identifier: Apache-2.0
"""A picture and a clip that the clients' programs show, as data URLs."""

from __future__ import annotations

from tests.engine.media.files import clip, encoded, picture
from tests.engine.media.hostile import data_url

PICTURE = data_url(encoded(picture(120, 90), "JPEG"), "image/jpeg")
CLIP = data_url(clip(4, 2), "video/mp4")

IMAGE_PART = {"type": "image_url", "image_url": {"url": PICTURE, "detail": "auto"}}
VIDEO_PART = {"type": "video_url", "video_url": {"url": CLIP}}
WORDS_PART = {"type": "text", "text": "What is it?"}
