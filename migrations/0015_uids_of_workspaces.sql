-- Uids of workspaces that a cluster showed to a ledger that was rebuilt, restored or took over, and that no account has: no
-- workspace gets one of them.
CREATE TABLE used_uid (
  uid INTEGER PRIMARY KEY CHECK (uid BETWEEN 1000 AND 2147483646),
  at  TEXT NOT NULL
) STRICT;
