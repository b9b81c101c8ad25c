"""Decides which rows are fetched, turns downloaded bytes into the image to store, and gives every row of a shard
exactly one status and reason, independent of the order of the responses.

Encoded images go to a spool file as they arrive; only their positions are kept in memory. So no image waits in memory
for a slow response of an earlier row, and the files written afterwards depend only on the rows and the downloaded
bytes. Shards can be built in any order and by any process, because each knows only its own rows. Within a shard, the
later of two duplicates (same bytes or same appearance) may be dropped.

Filters and images follow img2dataset 1.47, and the pixels are equal bit for bit. Its arithmetic over OpenCV is a few
lines here; importing img2dataset would also import its fetching, wandb and albumentations, and it replaces the
process's stdout for every image. Differences in the results, and their reasons:

- Truncated images are rejected; OpenCV fills them with grey.
- The pixels are counted before anything is decoded. Only JPEG, PNG, GIF, BMP and WebP are decoded, by libjpeg-turbo and
  Pillow, to the same pixels: OpenCV's decoders report damage on stderr only.
- The upper 8 bits of 16-bit samples are kept; OpenCV's encoders turn them white.
- `skip_reencode` keeps every JPEG that is RGB or grey and needs no resizing, even without a JFIF or EXIF header; CMYK
  is never kept.
- An image that would exceed MAX_PIXELS after enlarging is rejected.

Pixels are uint8, 0..255: HWC in the order blue, green, red, or HW of grey images.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, get_args

from dataprep.arrays import NDArray, np
from dataprep.errors import BuildError, DataprepError, UsageError, needing
from dataprep.formats import pictures
from dataprep.formats.img2dataset import DUPLICATE, FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE, FILTERED, STATUSES, SUCCESS
from dataprep.host.heartbeat import beat
from dataprep.sources.laion import Row
from dataprep.sources.tables import Value
from dataprep.web.requests import Outcome, Request, Status

Pixels: TypeAlias = "NDArray[np.uint8]"
Number = int | float
"""Type of a limit that is stored as given: 3 stays 3 in plan and manifest instead of becoming 3.0."""
TOO_SMALL, AREA_TOO_LARGE, RATIO_TOO_LARGE = SIZE_REASONS = (
    "image too small",
    "image area too large",
    "aspect ratio too large",
)
"""Reasons for refusing an image because of its size, in img2dataset's words."""
LIMITED_ROLES = {
    "similarity": "min_similarity",
    "punsafe": "max_punsafe",
    "pwatermark": "max_pwatermark",
    "nsfw": "nsfw",
    "language": "languages",
}
"""Name of the limit that needs the role's column, by role."""
ResizeMode = Literal["no", "keep_ratio", "keep_ratio_largest", "center_crop", "border"]
EncodeFormat = Literal["jpg", "png", "webp"]
RESIZE_MODES = get_args(ResizeMode)
ENCODE_FORMATS: dict[EncodeFormat, str] = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}
"""Pillow's name of each format, by img2dataset's name."""
MAX_EXIF_CHARACTERS = 4096
"""Maximum number of characters of one image's EXIF tags, as JSON."""
_MAX_TAG_CHARACTERS = 200
# Number of pixels blended over white at once, as doubles: 100 Mpixel would take 5 GB.
_STRIP_PIXELS = 2**20
_WHITE = (255, 255, 255)
CANNOT_BE_ENCODED = "cannot be encoded"
"""Reason for an image that became too long or too flat for its format."""
FAULT_REASONS: dict[pictures.Fault, str] = {
    "empty": "empty",
    "too-large": "too large",
    "no-pixels": "undecodable",
    "too-many-scans": "too many scans",
    "no-image": "no image",
    "truncated": "truncated",
    "undecodable": "undecodable",
}
"""Reason for rejecting an image, by its fault."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFilter:
    """Limits on a table's columns; None and empty limits are not applied.

    A row without a value in a limited column is left out, because the unknown value may exceed the limit. Sizes are the
    exception: if the table does not have them, the downloaded image is measured.
    """

    min_image_size: int = 0
    """Minimum length of the shorter side, in pixels; applied to the table's sizes and again to the downloaded image."""
    max_image_area: int | None = None
    """Maximum number of pixels of an image."""
    max_aspect_ratio: Number | None = None
    """Maximum ratio of the longer to the shorter side."""
    min_similarity: Number | None = None
    max_punsafe: Number | None = None
    max_pwatermark: Number | None = None
    nsfw: tuple[str, ...] = ()
    """Values of NSFW to keep, e.g. UNLIKELY, in upper or lower case."""
    languages: tuple[str, ...] = ()
    """Language codes to keep, e.g. en, in upper or lower case."""

    def __post_init__(self) -> None:
        if self.min_image_size < 0:
            raise UsageError(f"`min_image_size` must be 0 or more, got {self.min_image_size}")
        if self.max_image_area is not None and self.max_image_area < 1:
            raise UsageError(f"`max_image_area` must be 1 or more, got {self.max_image_area}")
        if self.max_aspect_ratio is not None and not self.max_aspect_ratio >= 1:
            raise UsageError(f"`max_aspect_ratio` must be 1 or more, got {self.max_aspect_ratio:g}")


def refuse_absent_columns(row_filter: RowFilter, roles: Mapping[str, str]) -> None:
    """Raise UsageError if a limit needs a column that the table does not have: it would filter every row."""
    for role, limit in LIMITED_ROLES.items():
        value = getattr(row_filter, limit)
        if value not in (None, ()) and role not in roles:
            raise UsageError(
                f"`{limit}` needs a column {role}, but the table has no such column; name it with `column` "
                f"{role}=NAME, or leave the limit out"
            )


def filter_reason(roles: Mapping[str, Value], row_filter: RowFilter) -> str:
    """Return the reason that a row is not fetched; empty if it is fetched."""
    url, width, height = (roles.get(role) for role in ("url", "width", "height"))
    if not (isinstance(url, str) and url.strip()):
        return "no url"
    if isinstance(width, int) and isinstance(height, int) and min(width, height) > 0:
        reason = size_reason(width, height, row_filter)
        if reason:
            return reason
    least = row_filter.min_similarity
    if least is not None and not (isinstance(value := roles["similarity"], Number) and value >= least):
        return "similarity"
    for role, most in (("punsafe", row_filter.max_punsafe), ("pwatermark", row_filter.max_pwatermark)):
        if most is not None and not (isinstance(value := roles[role], Number) and value <= most):
            return role
    for role, kept in (("nsfw", row_filter.nsfw), ("language", row_filter.languages)):
        if kept and not (isinstance(value := roles[role], str) and value.strip().lower() in map(str.lower, kept)):
            return role
    return ""


def size_reason(width: int, height: int, row_filter: RowFilter) -> str:
    """Return the entry of SIZE_REASONS that refuses an image of this size, in pixels; empty if it is accepted."""
    if min(width, height) < row_filter.min_image_size:
        return TOO_SMALL
    if row_filter.max_image_area is not None and width * height > row_filter.max_image_area:
        return AREA_TOO_LARGE
    ratio = max(width, height) / min(width, height)
    if row_filter.max_aspect_ratio is not None and ratio > row_filter.max_aspect_ratio:
        return RATIO_TOO_LARGE
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeOptions:
    """Settings for resizing and encoding: img2dataset's names, and defaults from its recipe for LAION-5B at 256."""

    image_size: int = 256
    """Length of the shorter side, in pixels; with `border` and `keep_ratio_largest`, of the longer one."""
    resize_mode: ResizeMode = "keep_ratio"
    resize_only_if_bigger: bool = True
    skip_reencode: bool = True
    """Whether an image keeps its bytes if it needs no resizing and has the right format."""
    encode_format: EncodeFormat = "jpg"
    encode_quality: int = 95
    """Quality, 1 to 100; for png the compression, 0 to 9."""

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise UsageError(f"`image_size` must be 1 pixel or more, got {self.image_size}")
        if self.resize_mode not in RESIZE_MODES:
            raise UsageError(f"`resize_mode` {self.resize_mode!r}: expected one of {', '.join(RESIZE_MODES)}")
        if self.encode_format not in ENCODE_FORMATS:
            raise UsageError(f"`encode_format` {self.encode_format!r}: expected one of {', '.join(ENCODE_FORMATS)}")
        lowest, highest = (0, 9) if self.encode_format == "png" else (1, 100)
        if not lowest <= self.encode_quality <= highest:
            raise UsageError(
                f"`encode_quality` {self.encode_quality}: {self.encode_format} takes {lowest} to {highest}"
            )


@dataclass(slots=True)
class EncodedImage:
    data: bytes
    width: int
    height: int
    original_width: int
    original_height: int
    exif: str
    """EXIF tags and their texts, as a JSON object."""
    dhash: int | None
    """Hash from `dhash_of`, which takes 0.7 ms of an image's 5 ms; None if duplicates are not searched."""


class RejectedImageError(Exception):
    """Raised for an image that is not stored, with the reason as its text; caught when the row gets its status."""


def encode_image(
    data: bytes, options: EncodeOptions, row_filter: RowFilter, *, with_dhash: bool = False
) -> EncodedImage:
    """Resize and encode one image. Raises RejectedImageError for an incomplete image, or one of a refused size."""
    try:
        return _encode_image(data, options, row_filter, with_dhash=with_dhash)
    except pictures.UnusableImageError as error:
        raise RejectedImageError(FAULT_REASONS[error.fault] if data else "empty") from error
    except (RejectedImageError, DataprepError, ImportError):
        raise
    except Exception as error:  # from a codec: only the image is read here, and nothing is written
        raise RejectedImageError("undecodable") from error


def resize(pixels: Pixels, options: EncodeOptions) -> Pixels:
    """Return the image at its new size, perhaps the same array. Raises RejectedImageError if it is too large."""
    mode, side = options.resize_mode, options.image_size
    height, width = pixels.shape[:2]
    measured = max(height, width) if mode in ("border", "keep_ratio_largest") else min(height, width)
    downscale = measured > side
    if mode == "no" or (options.resize_only_if_bigger and not downscale):
        return pixels
    cv2 = _cv2()
    scale = side / measured
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    if max(size) > pictures.MAX_SIDE or size[0] * size[1] > pictures.MAX_PIXELS:
        raise RejectedImageError(CANNOT_BE_ENCODED)  # 640 x 1 enlarged by its shorter side to 256
    if size != (width, height):
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if downscale else cv2.INTER_LANCZOS4)
    if mode == "center_crop":
        return _center(pixels, side)
    return _bordered(pixels, side) if mode == "border" else pixels


def dhash_of(pixels: Pixels) -> int:
    """Return a perceptual hash of 64 bits: whether each of 8 x 8 pixels is darker than its right neighbour, in the
    image shrunk to 9 x 8 grey pixels (Krawetz, "Kind of like that", 2013)."""
    cv2 = _cv2()
    small = cv2.resize(pixels, (9, 8), interpolation=cv2.INTER_AREA)
    grey_HW = small if small.ndim == 2 else cv2.cvtColor(small, cv2.COLOR_BGR2GRAY)
    return int.from_bytes(np.packbits(grey_HW[:, :-1] < grey_HW[:, 1:]).tobytes())


def exif_of(data: bytes, file_format: str) -> str:
    """Return the EXIF tags as a JSON object of texts, sorted by name, with the prefixes `Image`, `EXIF` and `GPS`; `{}`
    if there are none, or if they are damaged or longer than MAX_EXIF_CHARACTERS."""
    from PIL import ExifTags

    if file_format == "JPEG" and b"Exif\0\0" not in data[: 2**16]:
        return "{}"
    tags: dict[str, str] = {}
    try:
        with pictures.open_image(data) as image, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exif = image.getexif()
            directories: Iterable[tuple[str, Any, Callable[[int], str]]] = (
                ("Image", exif, lambda tag: ExifTags.TAGS.get(tag, f"0x{tag:04X}")),
                ("EXIF", exif.get_ifd(ExifTags.IFD.Exif), lambda tag: ExifTags.TAGS.get(tag, f"0x{tag:04X}")),
                ("GPS", exif.get_ifd(ExifTags.IFD.GPSInfo), lambda tag: ExifTags.GPSTAGS.get(tag, f"0x{tag:04X}")),
            )
            for prefix, directory, name_of in directories:
                for tag, value in directory.items():
                    if not isinstance(value, bytes | dict):
                        tags[f"{prefix} {name_of(tag)}"] = str(value).strip("\0 ")[:_MAX_TAG_CHARACTERS]
    except Exception:  # noqa: BLE001  a damaged EXIF block says nothing about the pixels
        return "{}"
    text = json.dumps(tags, sort_keys=True)
    return text if len(text) <= MAX_EXIF_CHARACTERS else "{}"


def _encode_image(data: bytes, options: EncodeOptions, row_filter: RowFilter, *, with_dhash: bool) -> EncodedImage:
    file_format, pixels = _decode(data)
    kept_format = file_format
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        pixels, kept_format = _over_white(pixels), ""
    original_height, original_width = pixels.shape[:2]
    reason = size_reason(original_width, original_height, row_filter)
    if reason:
        raise RejectedImageError(reason)
    resized = resize(pixels, options)
    keeps = resized is pixels and options.skip_reencode and kept_format == ENCODE_FORMATS[options.encode_format]
    height, width = resized.shape[:2]
    return EncodedImage(
        data if keeps else _encoded(resized, options),
        width,
        height,
        original_width,
        original_height,
        exif_of(data, file_format),
        dhash_of(pixels) if with_dhash else None,
    )


@cache
def _cv2() -> Any:
    """Return OpenCV, limited to one thread because many workers share the machine."""
    with needing("laion", "laion"):
        import cv2
    cv2.setNumThreads(1)
    cv2.utils.logging.setLogLevel(0)  # otherwise OpenCV writes to stderr for every damaged image
    return cv2


def _decode(data: bytes) -> tuple[str, Pixels]:
    """Return Pillow's name of the format and the stored pixels, with EXIF orientations ignored. The name is empty if
    the file must be re-encoded (CMYK, 16 bits)."""
    if data.startswith(pictures.JPEG_MAGIC):
        pixels = _decode_plain_jpeg(data)
        if pixels is not None:
            return "JPEG", pixels
    return _decode_with_care(data)


def _decode_plain_jpeg(data: bytes) -> Pixels | None:
    """Decode a JPEG that libjpeg-turbo decodes without a warning, to OpenCV's pixels; None for any other image."""
    import simplejpeg

    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=True)
        pictures.refuse_size(height, width)
        pictures.refuse_scans(data, height, width)
        if colorspace == "Gray":
            grey: Pixels = simplejpeg.decode_jpeg(data, "GRAY", strict=True)[:, :, 0]
            return grey
        if colorspace in ("YCbCr", "RGB"):
            pixels: Pixels = simplejpeg.decode_jpeg(data, "BGR", strict=True)
            return pixels
    except (ValueError, KeyError):  # KeyError: a colour space that simplejpeg has no name for
        pass
    return None


def _decode_with_care(data: bytes) -> tuple[str, Pixels]:
    """Decode with Pillow, which raises for an incomplete image, into the layout of OpenCV."""
    with pictures.open_image(data) as image:
        pictures.load_image(image, data)
        if image.mode == "CMYK":
            return "", _decode_cmyk(data)
        kept = "JPEG" if image.format == "MPO" else image.format or ""
        file_format = "" if image.mode.startswith("I") else kept
        plain = pictures.to_eight_bits(image, data)
        if plain.mode == "RGBA":
            return file_format, np.asarray(plain)[:, :, [2, 1, 0, 3]]
        if plain.mode in ("1", "L") and image.format != "GIF":
            return file_format, np.asarray(plain.convert("L"))
        return file_format, np.asarray(plain.convert("RGB"))[:, :, ::-1].copy()


def _decode_cmyk(data: bytes) -> Pixels:
    """Decode with OpenCV, whose conversion from CMYK to RGB differs from others."""
    cv2 = _cv2()
    try:
        pixels: Pixels | None = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        pixels = None
    if pixels is None:
        raise RejectedImageError("undecodable")
    return pixels


def _over_white(pixels: Pixels) -> Pixels:
    white = np.empty((*pixels.shape[:2], 3), np.uint8)
    flat_N4, white_N3 = pixels.reshape(-1, 4), white.reshape(-1, 3)
    for start in range(0, len(flat_N4), _STRIP_PIXELS):
        strip_N4 = flat_N4[start : start + _STRIP_PIXELS]
        alpha_N1 = strip_N4[:, 3:]
        over_N3 = alpha_N1 / 255 * strip_N4[:, :3] + 255 - alpha_N1
        white_N3[start : start + _STRIP_PIXELS] = np.rint(over_N3.clip(min=0, max=255))
    return white


def _center(pixels: Pixels, side: int) -> Pixels:
    height, width = pixels.shape[:2]
    top, left = (height - side) // 2, (width - side) // 2
    return np.ascontiguousarray(pixels[top : top + side, left : left + side])


def _bordered(pixels: Pixels, side: int) -> Pixels:
    """Return a square of `side` pixels with the image in its middle and white around it."""
    cv2 = _cv2()
    height, width = pixels.shape[:2]
    above, left = (side - height) // 2, (side - width) // 2
    below, right = side - height - above, side - width - left
    bordered: Pixels = cv2.copyMakeBorder(pixels, above, below, left, right, cv2.BORDER_CONSTANT, value=_WHITE)
    return bordered


def _encoded(pixels: Pixels, options: EncodeOptions) -> bytes:
    cv2 = _cv2()
    settings = {"jpg": cv2.IMWRITE_JPEG_QUALITY, "png": cv2.IMWRITE_PNG_COMPRESSION, "webp": cv2.IMWRITE_WEBP_QUALITY}
    params = [settings[options.encode_format], options.encode_quality]
    try:
        written, encoded = cv2.imencode(f".{options.encode_format}", pixels, params)
    except cv2.error as error:  # e.g. WebP over 16,383 pixels
        raise RejectedImageError(CANNOT_BE_ENCODED) from error
    if not written:
        raise RejectedImageError(CANNOT_BE_ENCODED)
    data: bytes = encoded.tobytes()
    return data


DuplicateAction = Literal["keep", "report", "drop"]
_HASH_BITS = 64
HASH_MISMATCH, NO_ANSWER = "hash mismatch", "no answer"
VERIFIED_HASHES = ("md5", "sha256")
MAX_TEXT_BYTES = 32 << 10
"""Maximum size of all strings of a row: readers of records limit everything but the image to twice as much."""
Fetch = Callable[[Iterable[Request]], Iterator[Outcome]]
"""Function that fetches requests and yields one outcome for each, in any order; `Request.key` is the row's position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DuplicatePolicy:
    """Actions for a row whose image equals or resembles the image of an earlier row of its shard."""

    exact: DuplicateAction = "keep"
    """Action for files with the same SHA-256."""
    perceptual: DuplicateAction = "keep"
    """Action for images whose dHashes differ in at most `max_distance` bits."""
    max_distance: int = 0
    """Maximum number of differing bits, of 64. Even at 0, different plain surfaces or logos on white count as equal."""

    def __post_init__(self) -> None:
        for name in ("exact", "perceptual"):
            action, known = getattr(self, name), get_args(DuplicateAction)
            if action not in known:
                raise UsageError(f"`{name}_duplicates` {action!r}: expected one of {', '.join(known)}")
        if not 0 <= self.max_distance < _HASH_BITS:
            raise UsageError(f"`duplicate_distance` must be 0 to {_HASH_BITS - 1} bits, got {self.max_distance}")

    @property
    def looks(self) -> bool:
        """Whether duplicates are searched; if so, the columns `dhash` and `duplicate_of` are written."""
        return (self.exact, self.perceptual) != ("keep", "keep")


class Duplicate(NamedTuple):
    """A row whose image equals or resembles the image of an earlier row."""

    position: int
    first: int
    """Position of that earlier row, the first of its kind."""
    action: DuplicateAction
    reason: str


def duplicates_of(sha256s: Sequence[str], dhashes: Sequence[int], policy: DuplicatePolicy) -> Iterator[Duplicate]:
    """Yield the duplicates of earlier rows, in order, each with the first matching row that is not itself a duplicate.

    A dropped file may also equal the file of a duplicate that is only reported.
    """
    seen: dict[str, int] = {}
    firsts = np.empty(len(dhashes), np.uint64)
    positions: list[int] = []
    for position, (sha256, dhash) in enumerate(zip(sha256s, dhashes, strict=True)):
        if policy.exact != "keep" and sha256 in seen:
            yield Duplicate(position, seen[sha256], policy.exact, "exact duplicate")
            continue
        if policy.perceptual != "keep":
            near = np.bitwise_count(firsts[: len(positions)] ^ np.uint64(dhash)) <= policy.max_distance
            if near.any():
                yield Duplicate(position, positions[int(near.argmax())], policy.perceptual, "perceptual duplicate")
                if (policy.exact, policy.perceptual) == ("drop", "report"):  # it stays, so equal files may follow
                    seen.setdefault(sha256, position)
                continue
        seen.setdefault(sha256, position)
        firsts[len(positions)] = dhash
        positions.append(position)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowOptions:
    """Options that, with the downloaded bytes, determine a row's result."""

    row_filter: RowFilter = field(default_factory=RowFilter)
    encode: EncodeOptions = field(default_factory=EncodeOptions)
    duplicates: DuplicatePolicy = field(default_factory=DuplicatePolicy)
    verify_hash: str | None = None
    """Column, `md5` or `sha256`, with the hash that the downloaded bytes must have."""
    digest: Literal["sha256"] = "sha256"
    """Hash of the downloaded bytes that is stored, in the column `sha256`; a part of plans and manifests."""

    def __post_init__(self) -> None:
        if self.verify_hash is not None and self.verify_hash not in VERIFIED_HASHES:
            raise UsageError(f"`verify_hash` {self.verify_hash}: expected one of {', '.join(VERIFIED_HASHES)}")


@dataclass(slots=True)
class RowResult:
    status: str = ""
    reason: str = ""
    """Reason of the status, as a short fixed phrase; empty on success."""
    image: EncodedImage | None = None
    """The image; its bytes are in the spool file."""
    digest: str | None = None
    """Hash of the downloaded bytes, in hexadecimal."""
    duplicate_of: str | None = None
    """Key of the first row with a similar or equal image."""
    consent: str | None = None
    """Evidence of an opt-out, as JSON."""
    spool_offset: int = 0
    spool_bytes: int = 0


def collect(rows: Sequence[Row], fetch: Fetch, options: RowOptions, spool: BinaryIO) -> list[RowResult]:
    """Fetch the rows that pass the filter, and encode their images. Raises BuildError if `fetch` yields an outcome that
    was not requested, or one twice.

    Args:
        spool: An empty file, opened for writing and reading; receives the encoded images in the order of completion.

    Returns:
        One result for each row, in the order of the rows.
    """
    results = [RowResult() for _ in rows]
    requests = []
    for position, row in enumerate(rows):
        reason = _reason_not_to_fetch(row, options)
        if reason:
            results[position] = RowResult(FILTERED, reason)
        else:
            requests.append(Request(position, str(row.roles["url"])))
    for outcome in fetch(requests):
        if not 0 <= outcome.key < len(rows) or results[outcome.key].status:
            raise BuildError(
                f"got an outcome for row {outcome.key} that was not requested or came twice; expected one for each "
                "request"
            )
        results[outcome.key] = _result_of(rows[outcome.key], outcome, options, spool)
        beat()
    for result in results:
        if not result.status:
            result.status, result.reason = FAILED_TO_DOWNLOAD, NO_ANSWER
    _mark_duplicates(rows, results, options.duplicates)
    return results


def read_image(spool: BinaryIO, result: RowResult) -> bytes:
    spool.seek(result.spool_offset)
    return spool.read(result.spool_bytes)


def count_statuses(results: Iterable[RowResult]) -> dict[str, int]:
    """Count the rows by status, with an entry for each of STATUSES."""
    counts = Counter(result.status for result in results)
    return {status: counts[status] for status in STATUSES}


def count_reasons(results: Iterable[RowResult]) -> dict[str, int]:
    """Count the rows by reason, with `success` for rows without one; sorted by name."""
    return dict(sorted(Counter(result.reason or result.status for result in results).items()))


def failure_reason(outcome: Outcome) -> str:
    """Return the reason of a failed download, as a fixed phrase without details that differ from run to run."""
    if outcome.status is Status.HTTP:
        return f"http {outcome.http_code}"
    if outcome.status is Status.OPT_OUT and outcome.evidence is not None:
        return f"{status_reason(outcome.status)}: {outcome.evidence.signal}"
    return status_reason(outcome.status)


def status_reason(status: Status) -> str:
    """Return the reason for a row whose request ended with a status other than `http`."""
    return status.value.replace("_", " ")


def _reason_not_to_fetch(row: Row, options: RowOptions) -> str:
    texts = (value for value in (*row.roles.values(), *row.carried) if isinstance(value, str))
    if sum(len(text.encode()) for text in texts) > MAX_TEXT_BYTES:
        return "row too large"
    if options.verify_hash is not None and not row.roles[options.verify_hash]:
        return "no hash"
    return filter_reason(row.roles, options.row_filter)


def _result_of(row: Row, outcome: Outcome, options: RowOptions, spool: BinaryIO) -> RowResult:
    if outcome.body is None:
        said = outcome.evidence
        return RowResult(FAILED_TO_DOWNLOAD, failure_reason(outcome), consent=said.json() if said else None)
    if options.verify_hash is not None:
        expected = str(row.roles[options.verify_hash]).strip().lower()
        if hashlib.new(options.verify_hash, outcome.body, usedforsecurity=False).hexdigest() != expected:
            return RowResult(FAILED_TO_DOWNLOAD, HASH_MISMATCH)
    try:
        image = encode_image(outcome.body, options.encode, options.row_filter, with_dhash=options.duplicates.looks)
    except RejectedImageError as error:
        return RowResult(FAILED_TO_RESIZE, str(error))
    offset, data, image.data = spool.tell(), image.data, b""
    spool.write(data)
    return RowResult(
        SUCCESS,
        image=image,
        digest=hashlib.new(options.digest, outcome.body, usedforsecurity=False).hexdigest(),
        spool_offset=offset,
        spool_bytes=len(data),
    )


def _mark_duplicates(rows: Sequence[Row], results: Sequence[RowResult], policy: DuplicatePolicy) -> None:
    if not policy.looks:
        return
    found = [(row.key, result) for row, result in zip(rows, results, strict=True) if result.status == SUCCESS]
    digests = [result.digest or "" for _, result in found]
    dhashes = [(result.image and result.image.dhash) or 0 for _, result in found]
    for duplicate in duplicates_of(digests, dhashes, policy):
        result = found[duplicate.position][1]
        result.duplicate_of = found[duplicate.first][0]
        if duplicate.action == "drop":
            result.status, result.reason = DUPLICATE, duplicate.reason
