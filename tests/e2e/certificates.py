"""Keys and certificates for tests of TLS, made by the openssl program: nothing secret lies in the tree, and nothing in it expires."""

import functools
import pathlib
import ssl
import subprocess
import tempfile

CONFIG = """
[req]
distinguished_name = name
prompt = no
[name]
CN = {subject}
[root]
basicConstraints = critical,CA:true
keyUsage = critical,keyCertSign
[leaf]
basicConstraints = critical,CA:false
subjectAltName = {names}
"""
KEYS = {"rsa": ("-newkey", "rsa:2048"), "ec": ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")}


class Certificates:
    """`root` vouches for `server` (RSA, as upstream's own test has it) and `client`; `stranger` only for `impostor`."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="certificates-")
        self.path = pathlib.Path(self._folder.name)
        self.root, self.root_key = self.make("root", "ec", extensions="root")
        self.stranger, self.stranger_key = self.make("stranger", "ec", extensions="root")
        self.server, self.server_key = self.make("server", "rsa", issuer="root")
        self.client, self.client_key = self.make("client", "ec", issuer="root")
        self.impostor, self.impostor_key = self.make("impostor", "ec", issuer="stranger")

    def openssl(self, *arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

    def make(self, name, key, extensions="leaf", issuer=None, names="DNS:localhost,IP:127.0.0.1"):
        """(certificate, key), both PEM."""
        config, certificate, own = (self.path / f"{name}.{kind}" for kind in ("cnf", "pem", "key"))
        config.write_text(CONFIG.format(subject=name, names=names))
        signer = ("-CA", self.path / f"{issuer}.pem", "-CAkey", self.path / f"{issuer}.key") if issuer else ()
        self.openssl("req", "-x509", "-nodes", "-days", 2, "-config", config, "-extensions", extensions, *KEYS[key], *signer,
                     "-keyout", own, "-out", certificate)
        return certificate, own

    def context(self, *own, root=None, version=None):
        """What a client has that trusts `root`, and presents the certificate and key `own`, if any."""
        context = ssl.create_default_context(cafile=root or self.root)
        # The root is not one of X.509's strictest.
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        if version:
            context.minimum_version = context.maximum_version = version
        if own:
            context.load_cert_chain(*own)
        return context

    def version_one(self, name, key, issuer, issuer_key, days=2):
        """A certificate for `key` without extensions, which is one of X.509 version 1."""
        request, certificate = self.path / f"{name}.csr", self.path / f"{name}.pem"
        self.openssl("req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request)
        plain = ("x509", "-req", "-in", request, "-CA", issuer, "-CAkey", issuer_key, "-set_serial", 1, "-days", days, "-out", certificate)
        try:
            # From 3.2 on openssl has to be told.
            self.openssl(*plain, "-x509v1")
        except subprocess.CalledProcessError:
            self.openssl(*plain)
        return certificate

    def write(self, name, content):
        path = self.path / name
        path.write_bytes(content)
        return path


@functools.cache
def shared():
    """The same ones for all tests of a run."""
    return Certificates()
