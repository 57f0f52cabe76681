-- Users that accounts have in a realm of Keycloak.

CREATE TABLE realm_account (
  account_id   TEXT NOT NULL REFERENCES account,
  realm        TEXT NOT NULL,
  user_id      TEXT,               -- NULL: it is being made
  asked        INTEGER NOT NULL,   -- milliseconds: what it is given as its creation
  adopted      INTEGER NOT NULL CHECK (adopted IN (0, 1)),
  name         TEXT NOT NULL,      -- as it was last written, as the next three
  mail         TEXT,
  display_name TEXT,
  enabled      INTEGER NOT NULL CHECK (enabled IN (0, 1)),
  mail_due     INTEGER NOT NULL CHECK (mail_due IN (0, 1)),
  mailed_at    TEXT,
  PRIMARY KEY (account_id, realm)
) STRICT;

CREATE VIEW realm_users AS
SELECT a.kind || ':' || a.name AS account, r.realm, r.name, r.user_id,
       CASE r.enabled WHEN 1 THEN 'enabled' ELSE 'disabled' END AS state,
       CASE r.adopted WHEN 1 THEN 'adopted' ELSE 'made' END AS origin,
       r.mailed_at
FROM realm_account r JOIN account a ON a.id = r.account_id
WHERE r.user_id IS NOT NULL;
