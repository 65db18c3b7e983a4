"""An authority and certificates of nodes, as a cluster with `RAY_USE_TLS` has them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Authority:
    """Signs the certificates of one cluster's nodes. `folder`: where its files are."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._signed(name, self._key.public_key(), is_authority=True)
        self._write(f"{name}.crt", self._certificate.public_bytes(Encoding.PEM))

    def node(self, name: str) -> dict[str, str]:
        """Ray's variables of a node with a new certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(name, key.public_key(), is_authority=False)
        return {
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": self._write(f"{name}.crt", certificate.public_bytes(Encoding.PEM)),
            "RAY_TLS_SERVER_KEY": self._write(
                f"{name}.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            ),
            "RAY_TLS_CA_CERT": str(self._folder / f"{self._name}.crt"),
        }

    def _signed(self, name: str, key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name)]),
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            key,
            x509.random_serial_number(),
            now - timedelta(hours=1),
            now + timedelta(days=1),
        )
        basic = x509.BasicConstraints(ca=is_authority, path_length=None)
        return builder.add_extension(basic, critical=True).sign(self._key, hashes.SHA256())

    def _write(self, name: str, content: bytes) -> str:
        (self._folder / name).write_bytes(content)
        return str(self._folder / name)
