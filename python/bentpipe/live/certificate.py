"""A certificate for the server of web pages, made for one run."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
from typing import Final

# The extra `web`; only a scenario with TLS imports this module.
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

_NAME: Final = "*.bentpipe.test"
_SERIAL_NUMBER: Final = 1
_VALID: Final = dt.timedelta(days=1)
# What the simulated handshake has: RSA-2048, and two certificates with 2,540 bytes together
# (`docs/model/web-page.md`). This one alone is as large as both.
_KEY_BITS: Final = 2_048
_SIZE_BYTES: Final = 2_540
# Netscape Certificate Comment, a text of any length that browsers ignore.
_COMMENT: Final = x509.ObjectIdentifier("2.16.840.1.113730.1.13")


def new_certificate() -> tuple[bytes, str]:
    """Return a new private key with a self-signed certificate (PEM), and the hash of its key."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=_KEY_BITS)
    # The lengths of the parts are coded in as many bytes as those of a comment of this size.
    filler = _SIZE_BYTES // 2
    size = len(_signed(key, filler).public_bytes(serialization.Encoding.DER))
    certificate = _signed(key, filler + _SIZE_BYTES - size)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    pem = private + certificate.public_bytes(serialization.Encoding.PEM)
    return pem, base64.b64encode(hashlib.sha256(public).digest()).decode()


def _signed(key: rsa.RSAPrivateKey, comment_bytes: int) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    now = dt.datetime.now(dt.UTC)
    # X.690, 8.1: the tag of an IA5String, and its length in two bytes.
    comment = b"\x16\x82" + comment_bytes.to_bytes(2, "big") + b" " * comment_bytes
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(_SERIAL_NUMBER)
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .add_extension(x509.UnrecognizedExtension(_COMMENT, comment), critical=False)
        .sign(key, hashes.SHA256())
    )
