-- Other credentials beside certificates: tokens of service accounts, one for each host that has one.

-- Of a token the `jti` stands in `fingerprint`, for that is what audit events name it by. bound_to: uid of the Secret
-- that it ends with. host: '' for what is of no host in particular.
ALTER TABLE certificate ADD COLUMN host TEXT NOT NULL DEFAULT '';
ALTER TABLE certificate ADD COLUMN bound_to TEXT;

DROP VIEW tools;
CREATE TABLE delivery_0006 (
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  host       TEXT NOT NULL DEFAULT '',
  path       TEXT NOT NULL,
  home       TEXT,   -- the folder that it is in as in a home, where that is not the account's own
  digest     TEXT NOT NULL,
  at         TEXT NOT NULL,
  checked_at TEXT,
  PRIMARY KEY (account_id, cluster, host)
) STRICT;
INSERT INTO delivery_0006 (account_id, cluster, path, digest, at, checked_at)
SELECT account_id, cluster, path, digest, at, checked_at FROM delivery;
DROP TABLE delivery;
ALTER TABLE delivery_0006 RENAME TO delivery;

CREATE VIEW tools AS
SELECT a.id, a.name, a.uid, a.gid, a.home,
       (SELECT min(t.namespace) FROM tenant t WHERE t.account_id = a.id) AS namespace,
       a.state, a.since, a.generation,
       (SELECT min(c.not_after) FROM certificate c WHERE c.account_id = a.id AND c.newest = 1
        AND c.generation = a.generation AND a.state = 'active') AS certificate_until,
       (SELECT max(d.at) FROM delivery d WHERE d.account_id = a.id) AS delivered_at,
       a.source, a.directory_id,
       (SELECT f.reason FROM failure f WHERE f.account_id = a.id AND f.attempts > 0 ORDER BY f.since DESC LIMIT 1)
         AS last_error,
       (SELECT u.at FROM last_use u WHERE u.account_id = a.id) AS last_use
FROM account a
WHERE a.kind = 'tool';

DROP VIEW expiring_certificates;
CREATE VIEW expiring_certificates AS
SELECT a.kind || ':' || a.name AS account, c.cluster, c.fingerprint, c.not_after, c.renew_after,
       CASE WHEN c.bound_to IS NULL THEN 'certificate' ELSE 'token' END AS kind, c.host
FROM certificate c JOIN account a ON a.id = c.account_id
WHERE c.newest = 1 AND c.generation = a.generation AND a.state = 'active'
ORDER BY c.not_after;
