-- What tells the person of an account apart in every source that has them (`[source.attributes] person`).
CREATE TABLE person (
  account_id TEXT PRIMARY KEY REFERENCES account,
  value      TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Namespaces that others create and a class adopts: whose each is, or why it is nobody's.
CREATE TABLE adopted_namespace (
  cluster    TEXT NOT NULL,
  namespace  TEXT NOT NULL,
  uid        TEXT NOT NULL,
  class      TEXT NOT NULL,
  owner      TEXT,                                -- what its annotation says
  named      TEXT REFERENCES account,             -- the account that the annotation named when it was first read
  account_id TEXT REFERENCES account,             -- whose it is
  why        TEXT,                                -- why it is nobody's
  since      TEXT NOT NULL,
  PRIMARY KEY (cluster, namespace)
) STRICT, WITHOUT ROWID;

-- Whose they were.
CREATE TABLE adopted_before (
  cluster    TEXT NOT NULL,
  namespace  TEXT NOT NULL,
  account_id TEXT NOT NULL REFERENCES account,
  at_start   TEXT NOT NULL,
  at_end     TEXT NOT NULL
) STRICT;
CREATE INDEX adopted_before_of ON adopted_before (account_id);
CREATE TRIGGER owner_is_kept AFTER UPDATE ON adopted_namespace
WHEN OLD.account_id IS NOT NULL AND OLD.account_id IS NOT NEW.account_id AND OLD.since < NEW.since
BEGIN INSERT INTO adopted_before VALUES (OLD.cluster, OLD.namespace, OLD.account_id, OLD.since, NEW.since); END;

DROP VIEW namespaces;
CREATE VIEW namespaces AS
SELECT t.cluster, t.namespace, t.class, a.kind || ':' || a.name AS account, a.uid, a.state, t.created_at
FROM tenant t JOIN account a ON a.id = t.account_id
WHERE t.namespace IS NOT NULL
UNION ALL
SELECT n.cluster, n.namespace, n.class, a.kind || ':' || a.name, a.uid, a.state, n.since
FROM adopted_namespace n JOIN account a ON a.id = n.account_id;

DROP VIEW quotas;
CREATE VIEW quotas AS
SELECT o.namespace, amount.key AS resource, amount.value AS amount, coalesce(n.class, t.class) AS from_class,
       q.note ->> 'ticket' AS override_ticket, q.until AS override_until
FROM object o
JOIN json_each(o.detail) amount
JOIN tenant t ON t.account_id = o.account_id AND t.cluster = o.cluster
LEFT JOIN adopted_namespace n ON n.cluster = o.cluster AND n.namespace = o.namespace
LEFT JOIN quota_override q ON n.class IS NULL AND q.account_id = o.account_id AND q.resource = amount.key
  AND q.amount = amount.value
  AND q.cluster = (SELECT max(c.cluster) FROM quota_override c WHERE c.account_id = o.account_id
                   AND c.resource = amount.key AND c.cluster IN ('', o.cluster))
WHERE o.kind = 'ResourceQuota';

DROP VIEW access_on;
CREATE VIEW access_on AS
WITH named AS (
  SELECT account_id, name, at_end,
         CASE at_end WHEN '9999-12-31T23:59:59Z' THEN '' ELSE at_start END AS at_start
  FROM account_name
), owned AS (
  SELECT account_id, namespace, created_at AS at_start, '9999-12-31T23:59:59Z' AS at_end FROM tenant
  UNION ALL
  SELECT account_id, namespace, since, '9999-12-31T23:59:59Z' FROM adopted_namespace WHERE account_id IS NOT NULL
  UNION ALL
  SELECT account_id, namespace, at_start, at_end FROM adopted_before
)
SELECT a.kind || ':' || n.name AS account,
       coalesce(m.kind || ':' || m.name, f.kind || ':' || f.name, ms.member) AS member, t.namespace, ms.role,
       max(ms.at_start, ac.at_start, t.created_at, n.at_start) AS at_start,
       min(ms.at_end, ac.at_end, n.at_end) AS at_end
FROM membership ms
JOIN account a ON a.id = ms.account_id
JOIN named n ON n.account_id = a.id
LEFT JOIN account m ON m.source = a.source AND m.directory_id = ms.member
LEFT JOIN former_entry fe ON m.id IS NULL AND fe.directory_id = ms.member
  AND fe.source IN (SELECT a.source UNION ALL SELECT own.source FROM former_entry own WHERE own.account_id = a.id)
LEFT JOIN account f ON f.id = fe.account_id
JOIN tenant t ON t.account_id = a.id
JOIN activity ac ON ac.account_id = a.id
WHERE max(ms.at_start, ac.at_start, t.created_at, n.at_start) < min(ms.at_end, ac.at_end, n.at_end)
UNION
SELECT a.kind || ':' || n.name, a.kind || ':' || n.name, o.namespace, 'owner',
       max(ac.at_start, o.at_start, n.at_start), min(ac.at_end, o.at_end, n.at_end)
FROM account a
JOIN named n ON n.account_id = a.id
JOIN owned o ON o.account_id = a.id
JOIN activity ac ON ac.account_id = a.id
WHERE a.kind = 'user' AND max(ac.at_start, o.at_start, n.at_start) < min(ac.at_end, o.at_end, n.at_end);

-- Users that accounts have in a realm of Keycloak.

CREATE TABLE realm_account (
  account_id   TEXT NOT NULL REFERENCES account,
  realm        TEXT NOT NULL,
  user_id      TEXT,               -- NULL: it is being made
  asked        INTEGER NOT NULL,   -- milliseconds: what it is given as its creation
  adopted      INTEGER NOT NULL CHECK (adopted IN (0, 1)),
  name         TEXT NOT NULL,      -- as it was last written, as the next three
  mail         TEXT,
  display_name TEXT,
  enabled      INTEGER NOT NULL CHECK (enabled IN (0, 1)),
  mail_due     INTEGER NOT NULL CHECK (mail_due IN (0, 1)),
  mailed_at    TEXT,
  PRIMARY KEY (account_id, realm)
) STRICT;

CREATE VIEW realm_users AS
SELECT a.kind || ':' || a.name AS account, r.realm, r.name, r.user_id,
       CASE r.enabled WHEN 1 THEN 'enabled' ELSE 'disabled' END AS state,
       CASE r.adopted WHEN 1 THEN 'adopted' ELSE 'made' END AS origin,
       r.mailed_at
FROM realm_account r JOIN account a ON a.id = r.account_id
WHERE r.user_id IS NOT NULL;
