-- An order to adopt an account names the entry that gets it.
CREATE TABLE order_0023 (
  id         INTEGER PRIMARY KEY,
  account_id TEXT NOT NULL REFERENCES account,
  what       TEXT NOT NULL
             CHECK (what IN ('suspend', 'resume', 'revoke', 'evict', 'adopt uid', 'adopt account', 'adopt object')),
  note       TEXT NOT NULL CHECK (json_valid(note)),
  bulk       TEXT,
  -- KIND NAMESPACE/NAME of an object; the id of the entry that gets the account; of an eviction the time from which on
  -- changes are listed, of a suspension its end
  object     TEXT CHECK (what IN ('evict', 'suspend', 'adopt account') OR (object IS NOT NULL) = (what = 'adopt object'))
) STRICT;
INSERT INTO order_0023 SELECT id, account_id, what, note, bulk, object FROM "order";
DROP TABLE "order";
ALTER TABLE order_0023 RENAME TO "order";
