-- From which admission rules an administrator excepted one account. Every exception ends by itself.
CREATE TABLE exception (
  account_id TEXT NOT NULL REFERENCES account,
  rule       TEXT NOT NULL CHECK (rule IN ('images', 'hosts', 'volumes', 'lifetime')),
  cluster    TEXT NOT NULL,   -- '' in every cluster
  until      TEXT NOT NULL,
  note       TEXT NOT NULL CHECK (json_valid(note)),
  proved     TEXT CHECK (json_valid(proved)),
  PRIMARY KEY (account_id, rule, cluster)
) STRICT, WITHOUT ROWID;

CREATE VIEW exceptions AS
SELECT a.kind || ':' || a.name AS account, nullif(e.cluster, '') AS cluster, e.rule, e.until,
       e.note ->> 'ticket' AS ticket, e.note ->> 'actor' AS actor, e.note ->> 'reason' AS reason, e.note ->> 'at' AS at
FROM exception e JOIN account a ON a.id = e.account_id;
