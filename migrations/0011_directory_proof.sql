-- How far the servers of a source were, so that one that is behind is told from one that is up to date.
CREATE TABLE source_mark (
  source   TEXT PRIMARY KEY,
  server   TEXT NOT NULL,                          -- that answered last; '': whichever answers next is accepted
  marks    TEXT NOT NULL CHECK (json_valid(marks)),
  at       TEXT NOT NULL,
  moved    TEXT CHECK (json_valid(moved)),         -- another server answers: since when, and which one before
  accepted INTEGER NOT NULL CHECK (accepted IN (0, 1))
) STRICT, WITHOUT ROWID;

-- What a source says and is not believed before something else proves it.
CREATE TABLE doubt (
  source   TEXT NOT NULL,
  kind     TEXT NOT NULL CHECK (kind IN ('tool', 'user', 'group')),
  question TEXT NOT NULL CHECK (json_valid(question)),
  since    TEXT NOT NULL,
  before   INTEGER NOT NULL,                       -- accounts that there were, or that showed it
  now      INTEGER NOT NULL,
  proof    TEXT,                                   -- what each server says
  accounts TEXT CHECK (json_valid(accounts)),
  counted  TEXT CHECK (json_valid(counted)),
  PRIMARY KEY (source, kind, question)
) STRICT, WITHOUT ROWID;

-- How many accounts showed where their homes are, when they last did as they should.
CREATE TABLE homes_shown (
  source   TEXT NOT NULL,
  kind     TEXT NOT NULL CHECK (kind IN ('tool', 'user', 'group')),
  accounts INTEGER NOT NULL,
  PRIMARY KEY (source, kind)
) STRICT, WITHOUT ROWID;

-- Resumptions have a limit of their own.
CREATE TABLE spent_now (
  spending TEXT NOT NULL CHECK (spending IN ('suspend', 'delete', 'remove_members', 'realm_disable', 'realm_remove_roles',
                                             'resume')),
  class    TEXT NOT NULL,
  amount   INTEGER NOT NULL,
  at       TEXT NOT NULL
) STRICT;
INSERT INTO spent_now SELECT spending, class, amount, at FROM spent ORDER BY rowid;
DROP TABLE spent;
ALTER TABLE spent_now RENAME TO spent;
CREATE INDEX spent_at ON spent (at);
