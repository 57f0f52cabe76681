-- The ledger. Times are UTC text, YYYY-MM-DDTHH:MM:SSZ, so that people can read and compare them; an open end is
-- 9999-12-31T23:59:59Z, so that comparisons work. Tables are named in the singular and hold what decisions need;
-- people read the views at the end. Views keep to SQLite 3.40, which is what Debian 12's sqlite3 has.

CREATE TABLE ledger (
  one             INTEGER PRIMARY KEY CHECK (one = 1),
  id              TEXT NOT NULL,
  last_generation INTEGER NOT NULL DEFAULT 0 CHECK (last_generation >= 0)
) STRICT;

CREATE TABLE account (
  id              TEXT PRIMARY KEY,
  kind            TEXT NOT NULL CHECK (kind IN ('tool', 'user', 'group')),
  name            TEXT NOT NULL,
  kubernetes_name TEXT NOT NULL,
  source          TEXT NOT NULL,
  directory_id    TEXT NOT NULL,
  dn              TEXT NOT NULL,
  uid             INTEGER CHECK (uid BETWEEN 1000 AND 2147483646),
  gid             INTEGER CHECK (gid BETWEEN 100 AND 2147483646),
  groups          TEXT CHECK (json_valid(groups)),
  home            TEXT,
  mail            TEXT,
  display_name    TEXT,
  disabled        TEXT,
  absence         TEXT CHECK (json_valid(absence)),
  state           TEXT NOT NULL CHECK (state IN ('new', 'active', 'suspended', 'archived', 'deleted')),
  since           TEXT NOT NULL,
  suspension      TEXT CHECK (json_valid(suspension)),
  generation      INTEGER NOT NULL CHECK (generation >= 0),
  revocation      TEXT CHECK (json_valid(revocation)),
  UNIQUE (source, directory_id),
  UNIQUE (kind, kubernetes_name)
) STRICT;
CREATE INDEX account_named ON account (kind, name);

-- What an account was called, as intervals: who asks about a day asks by the name of that day.
CREATE TABLE account_name (
  account_id TEXT NOT NULL REFERENCES account,
  name       TEXT NOT NULL,
  at_start   TEXT NOT NULL,
  at_end     TEXT NOT NULL DEFAULT '9999-12-31T23:59:59Z',
  PRIMARY KEY (account_id, at_start)
) STRICT;

-- Who belongs to what, as intervals. A member is named by its directory id, for it may not be an account yet.
CREATE TABLE membership (
  account_id    TEXT NOT NULL REFERENCES account,
  member        TEXT NOT NULL,
  role          TEXT NOT NULL CHECK (role IN ('member', 'manager')),
  leaving_since TEXT,   -- complete reads no longer name them, and no plan was allowed to carry it out yet
  at_start      TEXT NOT NULL,
  at_end        TEXT NOT NULL DEFAULT '9999-12-31T23:59:59Z',
  PRIMARY KEY (account_id, member, at_start, role)
) STRICT;
CREATE UNIQUE INDEX membership_open ON membership (account_id, member) WHERE at_end = '9999-12-31T23:59:59Z';

-- When an account could use the clusters (state `active`), as intervals.
CREATE TABLE activity (
  account_id TEXT NOT NULL REFERENCES account,
  at_start   TEXT NOT NULL,
  at_end     TEXT NOT NULL DEFAULT '9999-12-31T23:59:59Z',
  PRIMARY KEY (account_id, at_start)
) STRICT;

-- Every uid ever recorded, and whose it is. Never anybody else's again.
CREATE TABLE uid_history (
  uid        INTEGER PRIMARY KEY,
  account_id TEXT NOT NULL REFERENCES account
) STRICT;

CREATE TABLE tenant (
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  class      TEXT NOT NULL,
  namespace  TEXT,
  created_at TEXT NOT NULL,
  PRIMARY KEY (account_id, cluster),
  UNIQUE (cluster, namespace)
) STRICT;

CREATE TABLE hold (
  account_id TEXT PRIMARY KEY REFERENCES account,
  note       TEXT NOT NULL CHECK (json_valid(note))
) STRICT;

CREATE TABLE "order" (
  id         INTEGER PRIMARY KEY,
  account_id TEXT NOT NULL REFERENCES account,
  what       TEXT NOT NULL CHECK (what IN ('suspend', 'resume', 'revoke')),
  note       TEXT NOT NULL CHECK (json_valid(note))
) STRICT;

CREATE TABLE approval (
  hash  TEXT PRIMARY KEY,
  until TEXT NOT NULL
) STRICT;

CREATE TABLE refusal (
  place    INTEGER PRIMARY KEY,
  hash     TEXT NOT NULL,
  "limit"  TEXT NOT NULL,
  why      TEXT NOT NULL,
  accounts TEXT NOT NULL CHECK (json_valid(accounts)),
  parts    TEXT NOT NULL CHECK (json_valid(parts))
) STRICT;

-- What the limits of a day were used for.
CREATE TABLE spent (
  spending TEXT NOT NULL CHECK (spending IN ('suspend', 'delete', 'remove_members')),
  class    TEXT NOT NULL,
  amount   INTEGER NOT NULL,
  at       TEXT NOT NULL
) STRICT;
CREATE INDEX spent_at ON spent (at);

CREATE TABLE object (
  cluster     TEXT NOT NULL,
  api_version TEXT NOT NULL,
  kind        TEXT NOT NULL,
  namespace   TEXT NOT NULL,   -- '' for what is cluster-scoped, so that the key is one
  name        TEXT NOT NULL,
  account_id  TEXT NOT NULL REFERENCES account,
  uid         TEXT NOT NULL,
  wanted      TEXT NOT NULL,   -- digest of what we wanted
  observed    TEXT NOT NULL,   -- digest of the fields we manage in what the server answered
  detail      TEXT CHECK (json_valid(detail)),   -- what people read of it: a quota's amounts
  PRIMARY KEY (cluster, api_version, kind, namespace, name)
) STRICT, WITHOUT ROWID;

-- Every certificate ever issued, so that an audit event's fingerprint names its holder.
CREATE TABLE certificate (
  fingerprint TEXT PRIMARY KEY,
  account_id  TEXT NOT NULL REFERENCES account,
  cluster     TEXT NOT NULL,
  generation  INTEGER NOT NULL,
  subject     TEXT NOT NULL,
  not_before  TEXT NOT NULL,
  not_after   TEXT NOT NULL,
  renew_after TEXT NOT NULL,
  newest      INTEGER NOT NULL DEFAULT 1 CHECK (newest IN (0, 1))
) STRICT;
CREATE INDEX certificate_holder ON certificate (account_id, cluster);

CREATE TABLE delivery (
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  path       TEXT NOT NULL,
  digest     TEXT NOT NULL,
  at         TEXT NOT NULL,
  checked_at TEXT,
  PRIMARY KEY (account_id, cluster)
) STRICT;

CREATE TABLE stopped_workload (
  account_id  TEXT NOT NULL REFERENCES account,
  cluster     TEXT NOT NULL,
  api_version TEXT NOT NULL,
  kind        TEXT NOT NULL,
  namespace   TEXT NOT NULL,
  name        TEXT NOT NULL,
  uid         TEXT NOT NULL,
  replicas    INTEGER,
  at          TEXT NOT NULL,
  PRIMARY KEY (account_id, cluster, api_version, kind, namespace, name)
) STRICT;

CREATE TABLE failure (
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  step       TEXT NOT NULL,
  reason     TEXT NOT NULL,
  since      TEXT NOT NULL,
  attempts   INTEGER NOT NULL,
  next_try   TEXT NOT NULL,
  PRIMARY KEY (account_id, cluster)
) STRICT;

CREATE TABLE rejected_entry (
  place    INTEGER PRIMARY KEY,
  source   TEXT NOT NULL,
  kind     TEXT NOT NULL,
  dn       TEXT NOT NULL,
  name     TEXT,
  id       TEXT,
  disabled TEXT,
  why      TEXT NOT NULL
) STRICT;

CREATE TABLE cycle (
  id      INTEGER PRIMARY KEY,
  began   TEXT NOT NULL,
  ended   TEXT NOT NULL,
  trigger TEXT NOT NULL,
  sources TEXT NOT NULL CHECK (json_valid(sources)),
  report  TEXT NOT NULL CHECK (json_valid(report))
) STRICT;

-- The history: append-only, each row carries the SHA-256 of the one before. `REPLACE` removes a row without asking the
-- trigger on DELETE, so the trigger on INSERT takes a row only where it continues the chain.
CREATE TABLE event (
  id         INTEGER PRIMARY KEY,
  at         TEXT NOT NULL,
  actor      TEXT NOT NULL,
  account    TEXT,
  account_id TEXT,
  action     TEXT NOT NULL,
  reason     TEXT NOT NULL,
  ticket     TEXT,
  plan       TEXT,
  detail     TEXT NOT NULL CHECK (json_valid(detail)),
  previous   TEXT NOT NULL,
  hash       TEXT NOT NULL
) STRICT;
CREATE INDEX event_account ON event (account_id);

CREATE TRIGGER event_continues_the_chain BEFORE INSERT ON event
WHEN NEW.id IS NOT (SELECT coalesce(max(id), 0) + 1 FROM event)
  OR NEW.previous IS NOT coalesce((SELECT hash FROM event ORDER BY id DESC LIMIT 1), printf('%064d', 0))
BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END;
CREATE TRIGGER event_is_never_changed BEFORE UPDATE ON event
BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END;
CREATE TRIGGER event_is_never_removed BEFORE DELETE ON event
BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END;

-- What people read: docs/ledger.md, with an example of each.

CREATE VIEW tools AS
SELECT a.id, a.name, a.uid, a.gid, a.home,
       (SELECT min(t.namespace) FROM tenant t WHERE t.account_id = a.id) AS namespace,
       a.state, a.since, a.generation,
       (SELECT min(c.not_after) FROM certificate c WHERE c.account_id = a.id AND c.newest = 1
        AND c.generation = a.generation AND a.state = 'active') AS certificate_until,
       (SELECT max(d.at) FROM delivery d WHERE d.account_id = a.id) AS delivered_at,
       a.source, a.directory_id,
       (SELECT f.reason FROM failure f WHERE f.account_id = a.id AND f.attempts > 0 ORDER BY f.since DESC LIMIT 1)
         AS last_error
FROM account a
WHERE a.kind = 'tool';

CREATE VIEW users AS
SELECT a.id, a.name, a.uid, a.gid, a.home, a.mail, a.state, a.since,
       EXISTS (SELECT 1 FROM tenant t WHERE t.account_id = a.id AND t.namespace IS NULL AND a.state = 'active')
         AS is_admin,
       a.source, a.directory_id,
       (SELECT f.reason FROM failure f WHERE f.account_id = a.id AND f.attempts > 0 ORDER BY f.since DESC LIMIT 1)
         AS last_error
FROM account a
WHERE a.kind = 'user';

-- Tenants without a namespace are bound to the whole cluster. Whoever is one in several clusters is one admin.
CREATE VIEW admins AS
SELECT a.name, a.uid, max(a.since, min(t.created_at)) AS since,
       (SELECT min(c.not_after) FROM certificate c WHERE c.account_id = a.id AND c.newest = 1
        AND c.generation = a.generation) AS certificate_until
FROM account a JOIN tenant t ON t.account_id = a.id
WHERE t.namespace IS NULL AND a.state = 'active'
GROUP BY a.id;

-- A member that is no account of the ledger (its own entry is rejected) stands there by its directory id: leaving it
-- out would hide somebody who has access.
CREATE VIEW memberships AS
SELECT a.kind || ':' || a.name AS account, coalesce(m.kind || ':' || m.name, ms.member) AS member, ms.role,
       ms.at_start AS since
FROM membership ms
JOIN account a ON a.id = ms.account_id
LEFT JOIN account m ON m.source = a.source AND m.directory_id = ms.member
WHERE ms.at_end = '9999-12-31T23:59:59Z';

CREATE VIEW namespaces AS
SELECT t.cluster, t.namespace, t.class, a.kind || ':' || a.name AS account, a.uid, a.state, t.created_at
FROM tenant t JOIN account a ON a.id = t.account_id
WHERE t.namespace IS NOT NULL;

-- What the API server said stands in each ResourceQuota. There are no overrides yet; their columns wait.
CREATE VIEW quotas AS
SELECT o.namespace, amount.key AS resource, amount.value AS amount, t.class AS from_class,
       NULL AS override_ticket, NULL AS override_until
FROM object o
JOIN json_each(o.detail) amount
JOIN tenant t ON t.account_id = o.account_id AND t.cluster = o.cluster
WHERE o.kind = 'ResourceQuota';

CREATE VIEW expiring_certificates AS
SELECT a.kind || ':' || a.name AS account, c.cluster, c.fingerprint, c.not_after, c.renew_after
FROM certificate c JOIN account a ON a.id = c.account_id
WHERE c.newest = 1 AND c.generation = a.generation AND a.state = 'active'
ORDER BY c.not_after;

CREATE VIEW failing AS
SELECT a.kind || ':' || a.name AS account, f.step, f.reason, f.since, f.attempts, f.next_try
FROM failure f JOIN account a ON a.id = f.account_id
WHERE f.attempts > 0;   -- 0: a suspension has begun, and nothing of it failed

-- What will be taken from somebody if the directory stays as it is. What is past its day is held back, by a limit or by
-- a read that was not complete.
CREATE VIEW pending_removals AS
SELECT a.kind || ':' || a.name AS account, 'suspend' AS what, a.absence ->> 'since' AS absent_since,
       a.absence ->> 'due' AS "on"
FROM account a
WHERE a.state = 'active' AND (a.absence IS NOT NULL OR a.disabled IS NOT NULL)
UNION ALL
SELECT a.kind || ':' || a.name, 'remove ' || coalesce(m.kind || ':' || m.name, ms.member), ms.leaving_since,
       ms.leaving_since
FROM membership ms
JOIN account a ON a.id = ms.account_id
LEFT JOIN account m ON m.source = a.source AND m.directory_id = ms.member
WHERE ms.leaving_since IS NOT NULL AND ms.at_end = '9999-12-31T23:59:59Z';

CREATE VIEW history AS
SELECT at, actor, account, action, reason, ticket, plan, detail FROM event;

-- Who had access to what, and when: while the member belonged to the account and the account was active. An account
-- that was renamed stands here by its present name for all its time, and by each former one for the time it had it.
CREATE VIEW access_on AS
WITH named AS (
  SELECT account_id, name, at_end,
         CASE at_end WHEN '9999-12-31T23:59:59Z' THEN '' ELSE at_start END AS at_start
  FROM account_name
)
SELECT a.kind || ':' || n.name AS account, coalesce(m.kind || ':' || m.name, ms.member) AS member, t.namespace,
       ms.role, max(ms.at_start, ac.at_start, t.created_at, n.at_start) AS at_start,
       min(ms.at_end, ac.at_end, n.at_end) AS at_end
FROM membership ms
JOIN account a ON a.id = ms.account_id
JOIN named n ON n.account_id = a.id
LEFT JOIN account m ON m.source = a.source AND m.directory_id = ms.member
JOIN tenant t ON t.account_id = a.id
JOIN activity ac ON ac.account_id = a.id
WHERE max(ms.at_start, ac.at_start, t.created_at, n.at_start) < min(ms.at_end, ac.at_end, n.at_end)
UNION
SELECT a.kind || ':' || n.name, a.kind || ':' || n.name, t.namespace, 'owner',
       max(ac.at_start, t.created_at, n.at_start), min(ac.at_end, n.at_end)
FROM account a
JOIN named n ON n.account_id = a.id
JOIN tenant t ON t.account_id = a.id
JOIN activity ac ON ac.account_id = a.id
WHERE a.kind = 'user' AND max(ac.at_start, t.created_at, n.at_start) < min(ac.at_end, n.at_end);
