-- Orders to take over an object of somebody else's.

CREATE TABLE order_0007 (
  id         INTEGER PRIMARY KEY,
  account_id TEXT NOT NULL REFERENCES account,
  what       TEXT NOT NULL
             CHECK (what IN ('suspend', 'resume', 'revoke', 'adopt uid', 'adopt account', 'adopt object')),
  note       TEXT NOT NULL CHECK (json_valid(note)),
  bulk       TEXT,
  object     TEXT CHECK ((object IS NOT NULL) = (what = 'adopt object'))   -- KIND NAMESPACE/NAME
) STRICT;
INSERT INTO order_0007 SELECT id, account_id, what, note, bulk, NULL FROM "order";
DROP TABLE "order";
ALTER TABLE order_0007 RENAME TO "order";
