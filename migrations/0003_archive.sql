-- Archives of namespaces, how far the end of an account is, and orders about what a directory says.

-- Every namespace that was ever written into a file of state_dir/archive, read back and compared. None is forgotten.
CREATE TABLE archive (
  file       TEXT PRIMARY KEY,
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  namespace  TEXT NOT NULL,
  generation INTEGER NOT NULL,   -- of the account then: an archive of an earlier suspension is none of the present one
  digest     TEXT NOT NULL,      -- SHA-256 of the file
  bytes      INTEGER NOT NULL,
  objects    INTEGER NOT NULL,   -- in the file, Secrets included
  secrets    INTEGER NOT NULL,   -- of them, encrypted
  left_out   INTEGER NOT NULL,   -- Secrets that are not in the file, for there was no recipient
  at         TEXT NOT NULL
) STRICT;
CREATE INDEX archive_of ON archive (account_id);

-- What complete reads counted towards its archive or its deletion, or that its deletion was let through.
ALTER TABLE account ADD COLUMN ending TEXT CHECK (json_valid(ending));

CREATE TABLE order_0003 (
  id         INTEGER PRIMARY KEY,
  account_id TEXT NOT NULL REFERENCES account,
  what       TEXT NOT NULL CHECK (what IN ('suspend', 'resume', 'revoke', 'adopt uid')),
  note       TEXT NOT NULL CHECK (json_valid(note))
) STRICT;
INSERT INTO order_0003 SELECT id, account_id, what, note FROM "order";
DROP TABLE "order";
ALTER TABLE order_0003 RENAME TO "order";

CREATE VIEW archives AS
SELECT a.kind || ':' || a.name AS account, r.cluster, r.namespace, r.file, r.at, r.objects, r.secrets, r.left_out,
       r.bytes, r.digest
FROM archive r JOIN account a ON a.id = r.account_id;

-- What will be taken from somebody if the directory stays as it is. What is past its day is held back, by a limit or by
-- a read that was not complete.
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
SELECT a.kind || ':' || a.name, 'remove ' || coalesce(m.kind || ':' || m.name, ms.member), ms.leaving_since,
       ms.leaving_since
FROM membership ms
JOIN account a ON a.id = ms.account_id
LEFT JOIN account m ON m.source = a.source AND m.directory_id = ms.member
WHERE ms.leaving_since IS NOT NULL AND ms.at_end = '9999-12-31T23:59:59Z';
