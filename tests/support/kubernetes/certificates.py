"""Keys and certificates of a cluster that lives for a test session."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

_BEGIN, _END = datetime(2020, 1, 1, tzinfo=UTC), timedelta(days=36500)


def serving(folder: Path, name: str, address: str) -> tuple[Path, Path]:
    """Write a self-signed certificate for an IP address and its key; clients trust the certificate itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_BEGIN + _END)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    written = folder / f"{name}.crt", folder / f"{name}.key"
    written[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    written[1].write_bytes(_private(key))
    return written


def signing(folder: Path, name: str) -> tuple[Path, Path]:
    """Write the public and the private key that sign the tokens of ServiceAccounts."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    written = folder / f"{name}.pub", folder / f"{name}.key"
    written[0].write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    written[1].write_bytes(_private(key))
    return written


def _private(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
