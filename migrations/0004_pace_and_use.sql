-- Revocations of whole classes, when people last asked for their account, and which namespaces nobody uses.

-- Of which class's revocation an order is a part; NULL: it was given alone.
ALTER TABLE "order" ADD COLUMN bulk TEXT;

-- Revocations of a class that are under way. What waits of one is in "order".
CREATE TABLE bulk_revocation (
  class TEXT PRIMARY KEY,
  at    TEXT NOT NULL,      -- when the newest were revoked
  last  TEXT NOT NULL CHECK (json_valid(last)),
  done  INTEGER NOT NULL,
  note  TEXT NOT NULL CHECK (json_valid(note))
) STRICT;

-- Who asked for their account (`bursar ensure`), and when last. Of a class with provision = "on-demand" it is served from
-- then on.
CREATE TABLE last_use (
  account_id TEXT PRIMARY KEY REFERENCES account,
  at         TEXT NOT NULL
) STRICT;

-- Namespaces in which nothing runs, and for how long that was seen: a sum of gaps, as absence is.
CREATE TABLE idleness (
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  since      TEXT NOT NULL,
  counted_at TEXT NOT NULL,
  seconds    INTEGER NOT NULL,
  due        TEXT NOT NULL,
  warned_at  TEXT,
  PRIMARY KEY (account_id, cluster)
) STRICT, WITHOUT ROWID;
