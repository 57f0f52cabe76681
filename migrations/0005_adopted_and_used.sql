-- Accounts that are given to another entry of the directory, and when people last asked for theirs.

CREATE TABLE order_0005 (
  id         INTEGER PRIMARY KEY,
  account_id TEXT NOT NULL REFERENCES account,
  what       TEXT NOT NULL CHECK (what IN ('suspend', 'resume', 'revoke', 'adopt uid', 'adopt account')),
  note       TEXT NOT NULL CHECK (json_valid(note)),
  bulk       TEXT
) STRICT;
INSERT INTO order_0005 SELECT id, account_id, what, note, bulk FROM "order";
DROP TABLE "order";
ALTER TABLE order_0005 RENAME TO "order";

-- Entries of the directory that accounts were known by before an administrator gave them to others.
CREATE TABLE former_entry (
  directory_id TEXT NOT NULL,
  source       TEXT NOT NULL,
  account_id   TEXT NOT NULL REFERENCES account,
  PRIMARY KEY (directory_id, source)
) STRICT, WITHOUT ROWID;
CREATE INDEX former_entry_of ON former_entry (account_id);
CREATE TRIGGER entry_is_kept AFTER UPDATE ON account
WHEN OLD.directory_id IS NOT NEW.directory_id OR OLD.source IS NOT NEW.source
BEGIN INSERT OR REPLACE INTO former_entry VALUES (OLD.directory_id, OLD.source, OLD.id); END;

DROP VIEW tools;
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

DROP VIEW users;
CREATE VIEW users AS
SELECT a.id, a.name, a.uid, a.gid, a.home, a.mail, a.state, a.since,
       EXISTS (SELECT 1 FROM tenant t WHERE t.account_id = a.id AND t.namespace IS NULL AND a.state = 'active')
         AS is_admin,
       a.source, a.directory_id,
       (SELECT f.reason FROM failure f WHERE f.account_id = a.id AND f.attempts > 0 ORDER BY f.since DESC LIMIT 1)
         AS last_error,
       (SELECT u.at FROM last_use u WHERE u.account_id = a.id) AS last_use
FROM account a
WHERE a.kind = 'user';

-- The three views that name members: those of former entries, too.
DROP VIEW memberships;
CREATE VIEW memberships AS
SELECT a.kind || ':' || a.name AS account,
       coalesce(m.kind || ':' || m.name, f.kind || ':' || f.name, ms.member) AS member, ms.role,
       ms.at_start AS since
FROM membership ms
JOIN account a ON a.id = ms.account_id
LEFT JOIN account m ON m.source = a.source AND m.directory_id = ms.member
LEFT JOIN former_entry fe ON m.id IS NULL AND fe.directory_id = ms.member
  AND fe.source IN (SELECT a.source UNION ALL SELECT own.source FROM former_entry own WHERE own.account_id = a.id)
LEFT JOIN account f ON f.id = fe.account_id
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
SELECT a.kind || ':' || a.name, 'remove ' || coalesce(m.kind || ':' || m.name, f.kind || ':' || f.name, ms.member),
       ms.leaving_since, ms.leaving_since
FROM membership ms
JOIN account a ON a.id = ms.account_id
LEFT JOIN account m ON m.source = a.source AND m.directory_id = ms.member
LEFT JOIN former_entry fe ON m.id IS NULL AND fe.directory_id = ms.member
  AND fe.source IN (SELECT a.source UNION ALL SELECT own.source FROM former_entry own WHERE own.account_id = a.id)
LEFT JOIN account f ON f.id = fe.account_id
WHERE ms.leaving_since IS NOT NULL AND ms.at_end = '9999-12-31T23:59:59Z';

DROP VIEW access_on;
CREATE VIEW access_on AS
WITH named AS (
  SELECT account_id, name, at_end,
         CASE at_end WHEN '9999-12-31T23:59:59Z' THEN '' ELSE at_start END AS at_start
  FROM account_name
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
SELECT a.kind || ':' || n.name, a.kind || ':' || n.name, t.namespace, 'owner',
       max(ac.at_start, t.created_at, n.at_start), min(ac.at_end, n.at_end)
FROM account a
JOIN named n ON n.account_id = a.id
JOIN tenant t ON t.account_id = a.id
JOIN activity ac ON ac.account_id = a.id
WHERE a.kind = 'user' AND max(ac.at_start, t.created_at, n.at_start) < min(ac.at_end, n.at_end);

-- Namespaces in which nothing runs, and when each would be suspended for it.
CREATE VIEW idle AS
SELECT a.kind || ':' || a.name AS account, i.cluster, i.since, i.due AS "on", i.warned_at
FROM idleness i JOIN account a ON a.id = i.account_id;
