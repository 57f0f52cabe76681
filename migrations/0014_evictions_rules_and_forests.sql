-- When the ledger was rebuilt, restored or took over: what clusters show and it does not know may be from before.
ALTER TABLE ledger ADD COLUMN learned_at TEXT;

-- Orders to evict: to suspend, and to remove what somebody may have left in the namespace.

CREATE TABLE order_0014 (
  id         INTEGER PRIMARY KEY,
  account_id TEXT NOT NULL REFERENCES account,
  what       TEXT NOT NULL
             CHECK (what IN ('suspend', 'resume', 'revoke', 'evict', 'adopt uid', 'adopt account', 'adopt object')),
  note       TEXT NOT NULL CHECK (json_valid(note)),
  bulk       TEXT,
  -- KIND NAMESPACE/NAME of an object; of an eviction the time from which on changes are listed
  object     TEXT CHECK (what = 'evict' OR (object IS NOT NULL) = (what = 'adopt object'))
) STRICT;
INSERT INTO order_0014 SELECT id, account_id, what, note, bulk, object FROM "order";
DROP TABLE "order";
ALTER TABLE order_0014 RENAME TO "order";

-- Whether the ledger is older than the rules that the API server evaluates (services, scheduling, sysctls): there they
-- audit until an administrator chooses. A ledger that is made now has no row yet.
ALTER TABLE ledger ADD COLUMN older_than_rules INTEGER NOT NULL DEFAULT 0 CHECK (older_than_rules IN (0, 1));
UPDATE ledger SET older_than_rules = 1;

-- What other domains of a forest call an account (objectSid).
ALTER TABLE account ADD COLUMN sid TEXT;
CREATE INDEX account_entry ON account (directory_id);

-- Memberships with the name of the member: of the group's own source, of an entry that an account had before, or of the only
-- other domain of the forest that has the entry.
CREATE VIEW membership_named AS
SELECT ms.account_id, ms.role, ms.at_start, ms.at_end, ms.leaving_since,
       coalesce(m.kind || ':' || m.name, f.kind || ':' || f.name,
                (SELECT min(e.kind || ':' || e.name) FROM account e
                 WHERE a.sid IS NOT NULL AND e.sid IS NOT NULL AND e.directory_id = ms.member HAVING count(*) = 1),
                ms.member) AS member
FROM membership ms
JOIN account a ON a.id = ms.account_id
LEFT JOIN account m ON m.source = a.source AND m.directory_id = ms.member
LEFT JOIN former_entry fe ON m.id IS NULL AND fe.directory_id = ms.member
  AND fe.source IN (SELECT a.source UNION ALL SELECT own.source FROM former_entry own WHERE own.account_id = a.id)
LEFT JOIN account f ON f.id = fe.account_id;

DROP VIEW memberships;
CREATE VIEW memberships AS
SELECT a.kind || ':' || a.name AS account, ms.member, ms.role, ms.at_start AS since
FROM membership_named ms JOIN account a ON a.id = ms.account_id
WHERE ms.at_end = '9999-12-31T23:59:59Z';

DROP VIEW pending_removals;
CREATE VIEW pending_removals AS
SELECT a.kind || ':' || a.name AS account, 'suspend' AS what, a.absence ->> 'since' AS absent_since,
       a.absence ->> 'due' AS "on"
FROM account a
WHERE a.state = 'active' AND (a.absence IS NOT NULL OR a.disabled IS NOT NULL)
UNION ALL
SELECT a.kind || ':' || a.name, CASE a.state WHEN 'suspended' THEN 'archive' ELSE 'delete' END,
       coalesce(a.absence ->> 'since', a.ending ->> 'since'), a.ending ->> 'due'
FROM account a
WHERE a.state IN ('suspended', 'archived') AND a.ending ->> 'ending' = 'waits'
UNION ALL
SELECT a.kind || ':' || a.name, 'remove ' || ms.member, ms.leaving_since, ms.leaving_since
FROM membership_named ms JOIN account a ON a.id = ms.account_id
WHERE ms.leaving_since IS NOT NULL AND ms.at_end = '9999-12-31T23:59:59Z';

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
SELECT a.kind || ':' || n.name AS account, ms.member, t.namespace, ms.role,
       max(ms.at_start, ac.at_start, t.created_at, n.at_start) AS at_start,
       min(ms.at_end, ac.at_end, n.at_end) AS at_end
FROM membership_named ms
JOIN account a ON a.id = ms.account_id
JOIN named n ON n.account_id = a.id
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
