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
