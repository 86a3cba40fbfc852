"""From bytes to text: which encoding, and whether it is text at all."""

from __future__ import annotations

import codecs
import unicodedata
from dataclasses import dataclass

import numpy as np

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    # before UTF-16, whose mark is the beginning of this one
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

# What texts without a mark are found in. charset-normalizer knows many more, and then takes French in
# cp1252 for Baltic: fewer candidates make better guesses.
_CANDIDATES = [
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "iso8859_2", "iso8859_5"),
    *("koi8_r", "mac_roman", "cp932", "euc_jp", "gb18030", "big5", "cp949"),
]
_UNDEFINED_IN_CP1252 = b"\x81\x8d\x8f\x90\x9d"
_CHAOS_TOLERANCE = 0.02
_COHERENCE_TOLERANCE = 0.1
_DETECTION_BYTES = 1 << 18
_PLAUSIBILITY_CHARACTERS = 1 << 16
_MAX_ODD_SHARE = 0.02
_MAX_LOST_SHARE = 0.001
_DAMAGE_TOLERANCE = 4
_ORDINARY_CONTROLS = frozenset("\t\n\v\f\r\x1b\x85")


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text, the codec it was decoded with, and whether single bytes had to be replaced by U+FFFD."""

    text: str
    codec: str
    damaged: bool = False

    @property
    def encoding(self) -> str:
        """The codec as people should see it."""
        return f"{self.codec} (damaged)" if self.damaged else self.codec


@dataclass(frozen=True, slots=True)
class NotText:
    reason: str


def decode(data: bytes, declared: str | None = None) -> Decoded | NotText:
    """Decode a whole file.

    In this order: a byte order mark; strict UTF-8; the encoding that the file declares (HTML);
    UTF-8 with single damaged bytes; detection by charset-normalizer, Western (cp1252) where it is as
    good as the best. Zero bytes, and text in which more than 2% are control or unassigned characters,
    are binary data. Line ends are left as they are.
    """
    codec = codec_of_bom(data)
    if codec is not None and codec != "utf-8":
        mark = next(len(bom) for bom, name in _BOMS if name == codec)
        try:
            decoded = Decoded(data[mark:].decode(codec), codec)
        except UnicodeDecodeError:
            return NotText(f"starts with the byte order mark of {codec} but is not {codec}")
        if not _plausible(decoded.text):
            return NotText(f"starts like {codec} but is binary data, not text")
        return decoded
    if codec == "utf-8":
        data = data[len(codecs.BOM_UTF8) :]
    zero = data.find(0)
    if zero >= 0:
        return NotText(f"binary data (a zero byte at position {zero}), not text")
    try:
        decoded = Decoded(data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError as e:
        found = _declared(data, declared) or _damaged_utf8(data) or _detected(data, e.start)
        return found or NotText(_unknown(data, e.start))
    if not _plausible(decoded.text, ("Cc",)):
        return NotText("binary data (too many control characters), not text")
    return decoded


def codec_of_bom(data: bytes) -> str | None:
    """The codec that a byte order mark at the start names; None where there is no mark."""
    return next((codec for bom, codec in _BOMS if data.startswith(bom)), None)


def codec_of_head(head: bytes) -> str | NotText:
    """The codec for a file of which only the beginning is at hand, as TextIOWrapper needs it.

    A mark is left to the codec ("utf-8-sig", "utf-16", "utf-32"). "utf-8" may only mean that the
    beginning is ASCII: what follows may need a second look.
    """
    bom = codec_of_bom(head)
    if bom is not None:
        return "utf-8-sig" if bom == "utf-8" else bom.rsplit("-", 1)[0]
    if 0 in head:
        return NotText(f"binary data (a zero byte at position {head.find(0)}), not text")
    try:
        # the last character may be cut
        codecs.getincrementaldecoder("utf-8")().decode(head, final=False)
    except UnicodeDecodeError as e:
        if _damaged_utf8(head):
            return "utf-8"
        for codec in _candidates(head, e.start, complete=False):
            if _plausible(head.decode(codec, "replace")):
                return codec
        return NotText(_unknown(head, e.start))
    return "utf-8"


def _declared(data: bytes, codec: str | None) -> Decoded | None:
    if codec is None:
        return None
    # browsers read both as cp1252, and so their writers meant it
    codec = "cp1252" if codec.lower() in ("iso-8859-1", "latin1", "us-ascii", "ascii") else codec
    try:
        decoded = Decoded(data.decode(codec), codecs.lookup(codec).name)
    except (LookupError, ValueError):
        return None
    return decoded if _plausible(decoded.text) else None


def _damaged_utf8(data: bytes) -> Decoded | None:
    """UTF-8 with single bytes lost or cut: text in another encoding has next to no valid sequences."""
    text = data.decode("utf-8", "replace")
    lost = text.count("\ufffd")
    ascii_bytes = int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) < 128))
    valid = len(text) - ascii_bytes - lost
    if valid < _DAMAGE_TOLERANCE * lost or not _plausible(text):
        return None
    return Decoded(text, "utf-8", damaged=True)


def _detected(data: bytes, first_odd: int) -> Decoded | None:
    for codec in _candidates(data, first_odd):
        text = data.decode(codec, "replace")
        # one byte that the codec does not know is no reason to take another for the whole file
        lost = text.count("\ufffd")
        if lost <= _MAX_LOST_SHARE * len(text) and _plausible(text):
            return Decoded(text, codec, damaged=lost > 0)
    return None


def _candidates(data: bytes, first_odd: int, complete: bool = True) -> list[str]:
    """Codecs, the likeliest first, judged by the stretch around the first byte that is not UTF-8: ASCII
    tells nothing. complete: the data do not end inside a character."""
    from charset_normalizer import from_bytes

    start = max(0, first_odd - 4096)
    sample = data[start : start + _DETECTION_BYTES]
    cut = not complete or start + len(sample) < len(data)
    # a character has at most four bytes
    attempts = [sample[: len(sample) - missing] for missing in range(4 if cut else 1)]
    attempts.append(sample.translate(None, _UNDEFINED_IN_CP1252))
    for attempt in attempts:
        matches = list(from_bytes(attempt, cp_isolation=_CANDIDATES))
        if matches:
            break
    else:
        return []
    best = matches[0]
    western = [
        "cp1252"
        for m in matches
        if "cp1252" in m.could_be_from_charset
        and m.chaos <= best.chaos + _CHAOS_TOLERANCE
        and m.coherence >= best.coherence - _COHERENCE_TOLERANCE
    ]
    return western[:1] + [m.encoding for m in matches]


def _unknown(data: bytes, first_odd: int) -> str:
    return (
        f"neither UTF-8 (byte 0x{data[first_odd]:02x} at position {first_odd}) nor any other known "
        "encoding: binary data, or convert it to UTF-8"
    )


def _plausible(text: str, odd: tuple[str, ...] = ("Cc", "Cn", "Co", "Cs")) -> bool:
    """odd: the categories that text has next to none of. Only "Cc" where UTF-8 already proves much:
    characters that are newer than Python's tables look unassigned."""
    sample = text[:_PLAUSIBILITY_CHARACTERS]
    strange = [c for c in set(sample) if unicodedata.category(c) in odd and c not in _ORDINARY_CONTROLS]
    return sum(map(sample.count, strange)) <= _MAX_ODD_SHARE * len(sample)
