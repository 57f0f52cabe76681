-- Marks, and what the configuration takes away, have limits of their own: SQLite cannot change a CHECK in place.
CREATE TABLE spent_now (
  spending TEXT NOT NULL CHECK (spending IN ('suspend', 'disable', 'remove_access', 'delete', 'remove_members',
                                             'realm_disable', 'realm_remove_roles', 'resume')),
  class    TEXT NOT NULL,
  amount   INTEGER NOT NULL,
  at       TEXT NOT NULL
) STRICT;
INSERT INTO spent_now SELECT spending, class, amount, at FROM spent ORDER BY rowid;
DROP TABLE spent;
ALTER TABLE spent_now RENAME TO spent;
CREATE INDEX spent_at ON spent (at);
