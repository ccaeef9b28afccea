# SPDX-License-Identifier: Apache-2.0
"""Pictures and clips that somebody sends to do harm, or by mistake: each with what is said of it."""

from __future__ import annotations

import base64
import io
import struct
import zlib

from tests.engine.media.files import clip, encoded, picture


def data_url(data: bytes, declared: str = "image/png") -> str:
    return f"data:{declared};base64,{base64.b64encode(data).decode()}"


def png(width: int, height: int, *, pixels: bytes = b"", chunks: bytes = b"") -> bytes:
    """A PNG that claims a size, whatever its pixels are."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunks + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def text_bomb() -> bytes:
    """A PNG with a comment that unpacks to 64 MiB."""
    content = b"Comment\x00\x00" + zlib.compress(bytes(64 * 2**20), 9)
    packed = struct.pack(">I", len(content)) + b"zTXt" + content + struct.pack(">I", zlib.crc32(b"zTXt" + content))
    return png(8, 8, pixels=bytes(25 * 8), chunks=packed)


def animated(kind: str) -> bytes:
    file = io.BytesIO()
    frames = [picture(40, 40, seed) for seed in range(3)]
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    return file.getvalue()


def gif() -> bytes:
    return encoded(picture(40, 40).convert("P"), "GIF")


def huge_exif() -> bytes:
    """A JPEG whose EXIF note points outside of itself."""
    exif = b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\xff\xff" + b"\x01\x12\x00\x03\xff\xff\xff\xff\x7f\xff\xff\xff" * 5000
    plain = encoded(picture(40, 40), "JPEG")
    return plain[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + plain[2:]


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>'
GOOD = encoded(picture(40, 40))

NOT_A_PICTURE = "the picture is not a JPEG, PNG or WebP file"

PICTURES: dict[str, tuple[str, str]] = {
    "bomb": (data_url(png(60_000, 60_000)), "has 60000 x 60000 pixels; at most 8192 a side"),
    "many pixels": (data_url(png(8000, 8000)), "has 8000 x 8000 pixels; at most 8192 a side and 16777216 in all"),
    "thin": (data_url(png(1, 100_000)), "has 1 x 100000 pixels"),
    "empty": (data_url(png(0, 0)), "the picture"),
    "no width": (data_url(png(0, 10)), "the picture"),
    "no pixels": (data_url(png(64, 64)), "the picture is damaged"),
    "text bomb": (data_url(text_bomb()), "the picture is damaged"),
    "half": (data_url(encoded(picture(200, 200))[:900]), "the picture is damaged"),
    "half a JPEG": (data_url(encoded(picture(200, 200), "JPEG")[:900]), "the picture is damaged"),
    "broken checksum": (data_url(GOOD[:60] + bytes([GOOD[60] ^ 255]) + GOOD[61:]), "the picture is damaged"),
    "svg": (data_url(SVG, "image/svg+xml"), NOT_A_PICTURE),
    "gif": (data_url(gif(), "image/gif"), NOT_A_PICTURE),
    "animated gif": (data_url(animated("GIF"), "image/gif"), NOT_A_PICTURE),
    "animated png": (data_url(animated("PNG")), "the picture is animated"),
    "animated webp": (data_url(animated("WEBP"), "image/webp"), "the picture is animated"),
    "tiff": (data_url(encoded(picture(40, 40), "TIFF"), "image/tiff"), NOT_A_PICTURE),
    "bmp": (data_url(encoded(picture(40, 40), "BMP"), "image/bmp"), NOT_A_PICTURE),
    "html": (data_url(b"<html>no</html>", "text/html"), NOT_A_PICTURE),
    "a clip": (data_url(clip(4, 2), "video/mp4"), NOT_A_PICTURE),
    "nothing": ("data:image/png;base64,", NOT_A_PICTURE),
    "nested": (data_url(data_url(GOOD).encode()), NOT_A_PICTURE),
    "no comma": ("data:image/png;base64" + base64.b64encode(GOOD).decode(), "malformed"),
    "long head": ("data:" + "a" * 300 + ";base64,AAAA", "malformed"),
    "no padding": ("data:image/png;base64,AAAAAA", "not valid base64"),
    "padding inside": ("data:image/png;base64,AA==AAAA", "not valid base64"),
    "much padding": ("data:image/png;base64,AAA=====", "not valid base64"),
    "line breaks": ("data:image/png;base64,AAAA\nAAAA", "not valid base64"),
    "url alphabet": ("data:image/png;base64,__--", "not valid base64"),
    "escaped base64": ("data:image/png;base64,AAA%3D", "not valid base64"),
    "bad escape": ("data:image/png,%8xPNG", "begins no escape"),
    "not ASCII": ("data:image/png;base64,ÄÖÜ=", "not ASCII"),
}  # fmt: skip

CLIPS: dict[str, tuple[str, str]] = {
    "half": (data_url(clip(20, 10)[:400], "video/mp4"), "the clip is damaged"),
    "a picture": (data_url(GOOD, "video/mp4"), "the clip"),
    "avi": (data_url(clip(10, 10, container="avi"), "video/x-msvideo"), "the clip is a avi file"),
    "text": (data_url(b"#EXTM3U\nfile:///etc/passwd\n", "video/mp4"), "the clip"),
    "nothing": ("data:video/mp4;base64,", "the clip is damaged"),
}
