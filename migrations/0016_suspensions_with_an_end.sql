-- Suspensions with an end: an order has a moment.
CREATE TABLE order_0016 (
  id         INTEGER PRIMARY KEY,
  account_id TEXT NOT NULL REFERENCES account,
  what       TEXT NOT NULL
             CHECK (what IN ('suspend', 'resume', 'revoke', 'evict', 'adopt uid', 'adopt account', 'adopt object')),
  note       TEXT NOT NULL CHECK (json_valid(note)),
  bulk       TEXT,
  -- KIND NAMESPACE/NAME of an object; of an eviction the time from which on changes are listed, of a suspension its end
  object     TEXT CHECK (what IN ('evict', 'suspend') OR (object IS NOT NULL) = (what = 'adopt object'))
) STRICT;
INSERT INTO order_0016 SELECT id, account_id, what, note, bulk, object FROM "order";
DROP TABLE "order";
ALTER TABLE order_0016 RENAME TO "order";

-- What tells suspended people that they are suspended is no credential.
DROP VIEW tools;
CREATE VIEW tools AS
SELECT a.id, a.name, a.uid, a.gid, a.home,
       (SELECT min(t.namespace) FROM tenant t WHERE t.account_id = a.id) AS namespace,
       a.state, a.since, a.generation,
       (SELECT min(c.not_after) FROM certificate c WHERE c.account_id = a.id AND c.newest = 1
        AND c.generation = a.generation AND a.state = 'active') AS certificate_until,
       (SELECT max(d.at) FROM delivery d WHERE d.account_id = a.id AND d.digest NOT LIKE 'notice:%') AS delivered_at,
       a.source, a.directory_id,
       (SELECT f.reason FROM failure f WHERE f.account_id = a.id AND f.attempts > 0 ORDER BY f.since DESC LIMIT 1)
         AS last_error,
       (SELECT u.at FROM last_use u WHERE u.account_id = a.id) AS last_use
FROM account a
WHERE a.kind = 'tool';
