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
