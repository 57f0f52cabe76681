-- The key for which a cluster was last asked to sign a certificate, until the certificate is recorded. If the daemon is
-- killed in between, the request that it leaves behind is known by its key.
CREATE TABLE requested_certificate (
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  host       TEXT NOT NULL,
  -- SHA-256 of the SubjectPublicKeyInfo, hex
  public_key TEXT NOT NULL,
  PRIMARY KEY (account_id, cluster, host)
) STRICT, WITHOUT ROWID;

-- Certificates that a cluster signed for requests of the daemon that it did not make.
CREATE TABLE unknown_certificate (
  cluster     TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  -- as `bursar status` shows it
  text        TEXT NOT NULL,
  since       TEXT NOT NULL,
  not_after   TEXT NOT NULL,
  PRIMARY KEY (cluster, fingerprint)
) STRICT, WITHOUT ROWID;
