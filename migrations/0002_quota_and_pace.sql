-- Quota overrides, and how far a change of the policy has come.

-- What an administrator gave one account beside its class. It ends by itself.
CREATE TABLE quota_override (
  account_id TEXT NOT NULL REFERENCES account,
  resource   TEXT NOT NULL,
  cluster    TEXT NOT NULL,   -- '' in every cluster
  amount     TEXT NOT NULL,
  until      TEXT NOT NULL DEFAULT '9999-12-31T23:59:59Z',
  note       TEXT NOT NULL CHECK (json_valid(note)),
  PRIMARY KEY (account_id, resource, cluster)
) STRICT, WITHOUT ROWID;

-- Digest of what a tenant had of its own (name, ids, home, generation, overrides) when all of it was last as it should
-- be. What differs later without a difference here differs because of the policy, and goes at the pace of one.
CREATE TABLE settled (
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  own        TEXT NOT NULL,   -- '' not known
  PRIMARY KEY (account_id, cluster)
) STRICT, WITHOUT ROWID;
INSERT INTO settled (account_id, cluster, own)
SELECT t.account_id, t.cluster, '' FROM tenant t
WHERE NOT EXISTS (SELECT 1 FROM failure f WHERE f.account_id = t.account_id AND f.cluster = t.cluster);

-- Changes of the policy that are under way. The one who has not come through has no row.
CREATE TABLE pace (
  class    TEXT PRIMARY KEY,
  revision TEXT NOT NULL,
  began    TEXT NOT NULL,
  at       TEXT NOT NULL,
  last     TEXT NOT NULL CHECK (json_valid(last)),
  done     INTEGER NOT NULL,
  waiting  INTEGER NOT NULL,
  stopped  INTEGER NOT NULL CHECK (stopped IN (0, 1))
) STRICT;

-- What was wanted of each ResourceQuota, with the override that gives an amount: the one of the cluster before the one
-- of all clusters. One that is not carried out yet, or that the class locks, gives none. An override without an end ends
-- 9999-12-31T23:59:59Z.
DROP VIEW quotas;
CREATE VIEW quotas AS
SELECT o.namespace, amount.key AS resource, amount.value AS amount, t.class AS from_class,
       q.note ->> 'ticket' AS override_ticket, q.until AS override_until
FROM object o
JOIN json_each(o.detail) amount
JOIN tenant t ON t.account_id = o.account_id AND t.cluster = o.cluster
LEFT JOIN quota_override q ON q.account_id = o.account_id AND q.resource = amount.key
  AND q.amount = amount.value
  AND q.cluster = (SELECT max(c.cluster) FROM quota_override c WHERE c.account_id = o.account_id
                   AND c.resource = amount.key AND c.cluster IN ('', o.cluster))
WHERE o.kind = 'ResourceQuota';
