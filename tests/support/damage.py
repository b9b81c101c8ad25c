"""Damaged bytes."""


def flipped(data: bytes, bit: int) -> bytes:
    """Return bytes with one bit flipped."""
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
