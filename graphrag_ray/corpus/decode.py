"""Decode bytes: find the encoding, and whether they are text at all."""

from __future__ import annotations

import codecs
import unicodedata
from dataclasses import dataclass

import numpy as np

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    # before UTF-16, whose marks are prefixes of these
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

# Common encodings of texts without a mark. charset-normalizer knows many more and then takes French in cp1252
# for Baltic: fewer candidates make better guesses.
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
    """Decoded text. `damaged`: single bytes had to be replaced by U+FFFD."""

    text: str
    codec: str
    damaged: bool = False

    @property
    def encoding(self) -> str:
        """The codec as shown to users."""
        return f"{self.codec} (damaged)" if self.damaged else self.codec


@dataclass(frozen=True, slots=True)
class NotText:
    reason: str


def decode(data: bytes, declared: str | None = None) -> Decoded | NotText:
    """Decode a whole file; line ends are unchanged.

    Tries in this order: a byte order mark; strict UTF-8; the declared encoding (HTML); UTF-8 with single
    damaged bytes; detection by charset-normalizer, which prefers Western (cp1252) if it is as good as the
    best. Zero bytes, or more than 2% of control or unassigned characters, indicate binary data.
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
    if fault := zero_byte(data):
        return fault
    try:
        decoded = Decoded(data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError as e:
        return (
            _decode_declared(data, declared)
            or _decode_damaged_utf8(data)
            or _decode_detected(data, e.start)
            or _unknown(data, e.start)
        )
    if not _plausible(decoded.text, ("Cc",)):
        return NotText("binary data (too many control characters), not text")
    return decoded


def codec_of_bom(data: bytes) -> str | None:
    """Return the codec that a byte order mark names; None without a mark."""
    return next((codec for bom, codec in _BOMS if data.startswith(bom)), None)


def codec_of_head(head: bytes) -> str | NotText:
    """Return the codec of a file from its first bytes, as TextIOWrapper needs it.

    Marks are left to the codec ("utf-8-sig", "utf-16", "utf-32"). "utf-8" may only mean that the beginning is
    ASCII, so what follows may need a second look.
    """
    bom = codec_of_bom(head)
    if bom is not None:
        return "utf-8-sig" if bom == "utf-8" else bom.rsplit("-", 1)[0]
    if fault := zero_byte(head):
        return fault
    try:
        # The last character may be cut.
        codecs.getincrementaldecoder("utf-8")().decode(head, final=False)
    except UnicodeDecodeError as e:
        if _decode_damaged_utf8(head):
            return "utf-8"
        candidates = _candidates(head, e.start, complete=False)
        plausible = (codec for codec in candidates if _plausible(head.decode(codec, "replace")))
        return next(plausible, None) or _unknown(head, e.start)
    return "utf-8"


def zero_byte(data: bytes) -> NotText | None:
    """Report binary data with a zero byte."""
    position = data.find(0)
    return NotText(f"binary data (a zero byte at position {position}), not text") if position >= 0 else None


def _decode_declared(data: bytes, codec: str | None) -> Decoded | None:
    if codec is None:
        return None
    # Browsers read these as cp1252, so that is what authors meant.
    codec = "cp1252" if codec.lower() in ("iso-8859-1", "latin1", "us-ascii", "ascii") else codec
    try:
        decoded = Decoded(data.decode(codec), codecs.lookup(codec).name)
    except (LookupError, ValueError):
        return None
    return decoded if _plausible(decoded.text) else None


def _decode_damaged_utf8(data: bytes) -> Decoded | None:
    """Decode UTF-8 with lost or cut bytes. Text in other encodings has next to no valid UTF-8 sequences."""
    text = data.decode("utf-8", "replace")
    lost = text.count("\ufffd")
    ascii_bytes = int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) < 128))
    valid = len(text) - ascii_bytes - lost
    if valid < _DAMAGE_TOLERANCE * lost or not _plausible(text):
        return None
    return Decoded(text, "utf-8", damaged=True)


def _decode_detected(data: bytes, first_odd: int) -> Decoded | None:
    for codec in _candidates(data, first_odd):
        text = data.decode(codec, "replace")
        # A single byte that the codec does not know is no reason to choose another for the whole file.
        lost = text.count("\ufffd")
        if lost <= _MAX_LOST_SHARE * len(text) and _plausible(text):
            return Decoded(text, codec, damaged=lost > 0)
    return None


def _candidates(data: bytes, first_odd: int, complete: bool = True) -> list[str]:
    """Return codecs, the likeliest first, judged by the bytes around the first one that is not UTF-8.

    Data that is not `complete` may end inside a character.
    """
    from charset_normalizer import from_bytes

    start = max(0, first_odd - 4096)
    sample = data[start : start + _DETECTION_BYTES]
    cut = not complete or start + len(sample) < len(data)
    # A character has at most four bytes.
    attempts = [sample[: len(sample) - missing] for missing in range(4 if cut else 1)]
    attempts.append(sample.translate(None, _UNDEFINED_IN_CP1252))
    results = (list(from_bytes(attempt, cp_isolation=_CANDIDATES)) for attempt in attempts)
    matches = next(filter(None, results), None)
    if not matches:
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


def _unknown(data: bytes, first_odd: int) -> NotText:
    return NotText(
        f"neither UTF-8 (byte 0x{data[first_odd]:02x} at position {first_odd}) nor any other known encoding: "
        "it is binary data, or must be converted to UTF-8"
    )


def _plausible(text: str, odd: tuple[str, ...] = ("Cc", "Cn", "Co", "Cs")) -> bool:
    """Return whether hardly any characters are of the categories `odd`.

    Pass only "Cc" if the text is valid UTF-8, which proves much: characters newer than Python's tables look
    unassigned.
    """
    sample = text[:_PLAUSIBILITY_CHARACTERS]
    strange = [c for c in set(sample) if unicodedata.category(c) in odd and c not in _ORDINARY_CONTROLS]
    return sum(map(sample.count, strange)) <= _MAX_ODD_SHARE * len(sample)
