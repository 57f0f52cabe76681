-- Public SSH keys of people, and where they stand in homes.

-- A JSON list, as the directory has them.
ALTER TABLE account ADD COLUMN ssh_keys TEXT CHECK (json_valid(ssh_keys));

CREATE TABLE ssh_delivery (
  account_id TEXT PRIMARY KEY REFERENCES account,
  path       TEXT NOT NULL,   -- the file
  home       TEXT NOT NULL,   -- the home that it is in
  digest     TEXT NOT NULL,   -- hex SHA-256 of the lines
  at         TEXT NOT NULL,
  checked_at TEXT
) STRICT;
