PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO _sqlx_migrations VALUES(1,'ledger','2026-11-22 22:01:52',1,X'5beeccece393ceb890914dfa85a43fd2135c2c6f4610aff452357826b6730a0fc93ed81bfeea6a89674e79824237f397',4982444);
INSERT INTO _sqlx_migrations VALUES(2,'quota and pace','2026-11-22 22:01:52',1,X'64365991db26aa487d9dffd39ad0052201085ab5dddbe647ac414f6717cd17a364b94e0c8fb5c30826786019ae873e78',1404547);
INSERT INTO _sqlx_migrations VALUES(3,'archive','2026-11-22 22:01:52',1,X'269647eca3cf178a0927168919a6464af896e9db16fbff08e2b48f01655cd44a216a118d44437f7d388c96dfc5874902',5145025);
INSERT INTO _sqlx_migrations VALUES(4,'pace and use','2026-11-22 22:01:52',1,X'abd1d191e0ade911fe3aa94b0e6cbcfa7f5e6b45e15caf5dc05768eb6e6770b5860c519b1f13ef6fb49bc4ad84896188',2086961);
INSERT INTO _sqlx_migrations VALUES(5,'adopted and used','2026-11-22 22:01:52',1,X'bcad409ddf813ddf6327fd8ca04afb948c5de02e50fa4bf5215ba65db744c33c664cadd4d9cd56764101b2b77804184e',5374337);
INSERT INTO _sqlx_migrations VALUES(6,'credentials','2026-11-22 22:01:52',1,X'4b7dd800183bd1d46f56e07393a15b65646f5d063461789604701db37ece7656f1e65fa3c1bef1e68e069e5506663ba9',6742240);
INSERT INTO _sqlx_migrations VALUES(7,'adopted objects','2026-11-22 22:01:52',1,X'7c3bcfa9875fcbbfc6b85511d7663e744dc8e648fddd8aada464b60098166b8843d7a0e003953a8ac4c97b7ff74863f0',4255674);
INSERT INTO _sqlx_migrations VALUES(8,'ssh keys','2026-11-22 22:01:52',1,X'6075be771407e8e3971ac4ac28fd338c05862a8ceea9274629ca0b23f860b982e3619004ffd40e5d0b79e783e7885e60',4024301);
INSERT INTO _sqlx_migrations VALUES(9,'adopted namespaces and realm','2026-11-22 22:01:52',1,X'86a1b30718a33574e462e26b2ee8ea71f65e0acce16954d76e0746eaf11cc5854873f08335ab2b03527c4707397fa790',2166930);
INSERT INTO _sqlx_migrations VALUES(10,'realm limits','2026-11-22 22:01:52',1,X'bd212fabba935682806a054fc55efc2d21ae1a2f241a60e7cd0d625348c04d915a22c5f12bd711cffd6fdd17d40185c5',4821365);
INSERT INTO _sqlx_migrations VALUES(11,'directory proof','2026-11-22 22:01:52',1,X'4a267357b3984ec0205ad749f7613b393044edf2f8b995ec8ce1abea28b9952d5bc4a1c49cb3fb2546515d620e6f68cc',5272976);
INSERT INTO _sqlx_migrations VALUES(12,'access limits','2026-11-22 22:01:52',1,X'c668b3b4a89845d8558e0ff46bc488727f6ad9605e6c95fab8a074cd08a72a8080a54f347a45e36e75516553cdc33c6e',4930577);
INSERT INTO _sqlx_migrations VALUES(13,'proved overrides','2026-11-22 22:01:52',1,X'17e5279d72b70706087838353140273dd388af2b6199edbae5391ae2cfc99aa452623c6e7b35f9211b24f40be66c0965',1940113);
INSERT INTO _sqlx_migrations VALUES(14,'evictions rules and forests','2026-11-22 22:01:52',1,X'9c8ef00e8b60f86c364f78595e30036c056a86b3e8f3439fc2087d0322afe3b41848e8d8f21e5a140573bfe409ccdc5f',9933828);
INSERT INTO _sqlx_migrations VALUES(16,'suspensions with an end','2026-11-22 22:01:52',1,X'e04e64e06fe56710c25dff6f5522a84bb5fe45fa340954d4eb786d4236b62c3467998d587d1e86a0d7fbda9f198ed510',5517870);
CREATE TABLE ledger (
  one             INTEGER PRIMARY KEY CHECK (one = 1),
  id              TEXT NOT NULL,
  last_generation INTEGER NOT NULL DEFAULT 0 CHECK (last_generation >= 0)
, learned_at TEXT, older_than_rules INTEGER NOT NULL DEFAULT 0 CHECK (older_than_rules IN (0, 1))) STRICT;
INSERT INTO ledger VALUES(1,'a3f105540517f947f45fdc164e18e360',0,NULL,0);
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
  revocation      TEXT CHECK (json_valid(revocation)), ending TEXT CHECK (json_valid(ending)), ssh_keys TEXT CHECK (json_valid(ssh_keys)), sid TEXT,
  UNIQUE (source, directory_id),
  UNIQUE (kind, kubernetes_name)
) STRICT;
INSERT INTO account VALUES('id-alice','user','alice','alice','people','entry-alice','cn=alice',3001,3001,'[]','/data/project/alice','alice@example.org',NULL,NULL,NULL,'new','2026-05-01T08:00:00Z',NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO account VALUES('id-bob','user','bob','bob','people','entry-bob','cn=bob',3002,3002,'[]','/data/project/bob',NULL,NULL,NULL,NULL,'new','2026-05-01T08:00:00Z',NULL,0,NULL,NULL,NULL,NULL);
INSERT INTO account VALUES('id-carol','user','carol','carol','people','entry-carol','cn=carol',3003,3003,'[]','/data/project/carol',NULL,NULL,NULL,NULL,'active','2026-05-01T08:00:00Z',NULL,1,NULL,NULL,NULL,NULL);
INSERT INTO account VALUES('id-foo','tool','web','foo','people','entry-foo','cn=foo',52503,52503,'[]','/data/project/foo',NULL,NULL,NULL,NULL,'active','2026-05-12T09:00:00Z',NULL,2,NULL,NULL,'["ssh-ed25519 AAAA web"]',NULL);
INSERT INTO account VALUES('id-old','tool','old','old','people','entry-old','cn=old',52504,52504,'[]','/data/project/old',NULL,NULL,NULL,'{"counted_at":"2026-05-31T20:00:00Z","due":"2026-06-01T20:00:00Z","seconds":0,"since":"2026-05-31T20:00:00Z"}','active','2026-05-01T08:00:00Z',NULL,1,NULL,NULL,NULL,NULL);
CREATE TABLE account_name (
  account_id TEXT NOT NULL REFERENCES account,
  name       TEXT NOT NULL,
  at_start   TEXT NOT NULL,
  at_end     TEXT NOT NULL DEFAULT '9999-12-31T23:59:59Z',
  PRIMARY KEY (account_id, at_start)
) STRICT;
INSERT INTO account_name VALUES('id-alice','alice','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO account_name VALUES('id-bob','bob','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO account_name VALUES('id-carol','carol','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO account_name VALUES('id-foo','foo','2026-05-01T08:00:00Z','2026-05-20T08:00:00Z');
INSERT INTO account_name VALUES('id-old','old','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO account_name VALUES('id-foo','web','2026-05-20T08:00:00Z','9999-12-31T23:59:59Z');
CREATE TABLE membership (
  account_id    TEXT NOT NULL REFERENCES account,
  member        TEXT NOT NULL,
  role          TEXT NOT NULL CHECK (role IN ('member', 'manager')),
  leaving_since TEXT,   -- complete reads no longer name them, and no plan was allowed to carry it out yet
  at_start      TEXT NOT NULL,
  at_end        TEXT NOT NULL DEFAULT '9999-12-31T23:59:59Z',
  PRIMARY KEY (account_id, member, at_start, role)
) STRICT;
INSERT INTO membership VALUES('id-foo','entry-alice','member',NULL,'2026-05-01T08:00:00Z','2026-05-25T08:00:00Z');
INSERT INTO membership VALUES('id-old','entry-bob','member','2026-05-31T22:00:00Z','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO membership VALUES('id-foo','entry-bob','member',NULL,'2026-05-05T08:00:00Z','9999-12-31T23:59:59Z');
CREATE TABLE activity (
  account_id TEXT NOT NULL REFERENCES account,
  at_start   TEXT NOT NULL,
  at_end     TEXT NOT NULL DEFAULT '9999-12-31T23:59:59Z',
  PRIMARY KEY (account_id, at_start)
) STRICT;
INSERT INTO activity VALUES('id-carol','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO activity VALUES('id-foo','2026-05-01T08:00:00Z','2026-05-10T09:00:00Z');
INSERT INTO activity VALUES('id-old','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO activity VALUES('id-foo','2026-05-12T09:00:00Z','9999-12-31T23:59:59Z');
CREATE TABLE uid_history (
  uid        INTEGER PRIMARY KEY,
  account_id TEXT NOT NULL REFERENCES account
) STRICT;
INSERT INTO uid_history VALUES(3001,'id-alice');
INSERT INTO uid_history VALUES(3002,'id-bob');
INSERT INTO uid_history VALUES(3003,'id-carol');
INSERT INTO uid_history VALUES(52503,'id-foo');
INSERT INTO uid_history VALUES(52504,'id-old');
CREATE TABLE tenant (
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  class      TEXT NOT NULL,
  namespace  TEXT,
  created_at TEXT NOT NULL,
  PRIMARY KEY (account_id, cluster),
  UNIQUE (cluster, namespace)
) STRICT;
INSERT INTO tenant VALUES('id-carol','prod','admin',NULL,'2026-05-01T08:00:00Z');
INSERT INTO tenant VALUES('id-foo','prod','tool','tool-foo','2026-05-01T08:00:00Z');
INSERT INTO tenant VALUES('id-old','prod','tool','tool-old','2026-05-01T08:00:00Z');
CREATE TABLE hold (
  account_id TEXT PRIMARY KEY REFERENCES account,
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
INSERT INTO object VALUES('prod','v1','ResourceQuota','tool-foo','bursar','id-foo','u','w','o','{"limits.memory":"8Gi","pods":"16"}');
INSERT INTO object VALUES('prod','v1','ResourceQuota','tool-old','bursar','id-old','u','w','o','{"limits.memory":"8Gi","pods":"16"}');
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
, host TEXT NOT NULL DEFAULT '', bound_to TEXT) STRICT;
INSERT INTO certificate VALUES('11aa22bb11aa22bb11aa22bb11aa22bb11aa22bb11aa22bb11aa22bb11aa22bb','id-carol','prod',1,'user:carol','2026-05-29T08:00:00Z','2026-06-06T08:00:00Z','2026-06-03T18:00:00Z',1,'',NULL);
INSERT INTO certificate VALUES('9a19ac7c9a19ac7c9a19ac7c9a19ac7c9a19ac7c9a19ac7c9a19ac7c9a19ac7c','id-foo','prod',2,'tool:web','2026-05-29T08:00:00Z','2026-06-05T08:00:00Z','2026-06-02T18:00:00Z',1,'',NULL);
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
INSERT INTO failure VALUES('id-old','prod','home','the disk quota is used up','2026-05-31T21:00:00Z',4,'2026-06-01T01:00:00Z');
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
INSERT INTO event VALUES(1,'2026-05-01T08:00:00Z','bursar','tool:foo','id-foo','created','new',NULL,NULL,'{}','0000000000000000000000000000000000000000000000000000000000000000','27c61201b98ed99782af8343dee2074272a2eaa9bdf167feae0a02a349a00a7f');
INSERT INTO event VALUES(2,'2026-05-10T09:00:00Z','carol','tool:foo','id-foo','suspended','mining','T9',NULL,'{}','27c61201b98ed99782af8343dee2074272a2eaa9bdf167feae0a02a349a00a7f','7bf440718a19e509af69e0c286768969a76c18ecff9ab1dfaa744e92c1b1f41c');
INSERT INTO event VALUES(3,'2026-05-12T09:00:00Z','carol','tool:foo','id-foo','resumed','talked to them','T9',NULL,'{}','7bf440718a19e509af69e0c286768969a76c18ecff9ab1dfaa744e92c1b1f41c','a21b8a02eb5e8afe9476e48558f7216f8f51388757ac15a8bc171be5c5d9e6c1');
INSERT INTO event VALUES(4,'2026-05-20T08:00:00Z','bursar','tool:web','id-foo','renamed','renamed in the directory',NULL,NULL,'{}','a21b8a02eb5e8afe9476e48558f7216f8f51388757ac15a8bc171be5c5d9e6c1','6a0eda5c07ad0660c0d7e1a13ffc0c0521fa26b26f8ae428f8d393c272468cd9');
CREATE TABLE quota_override (
  account_id TEXT NOT NULL REFERENCES account,
  resource   TEXT NOT NULL,
  cluster    TEXT NOT NULL,   -- '' in every cluster
  amount     TEXT NOT NULL,
  until      TEXT NOT NULL DEFAULT '9999-12-31T23:59:59Z',
  note       TEXT NOT NULL CHECK (json_valid(note)), proved TEXT CHECK (json_valid(proved)),
  PRIMARY KEY (account_id, resource, cluster)
) STRICT, WITHOUT ROWID;
INSERT INTO quota_override VALUES('id-foo','pods','','16','2027-01-01T00:00:00Z','{"actor":"carol","at":"2026-05-01T08:00:00Z","reason":"a course","ticket":"T123"}',NULL);
CREATE TABLE settled (
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  own        TEXT NOT NULL,   -- '' not known
  PRIMARY KEY (account_id, cluster)
) STRICT, WITHOUT ROWID;
CREATE TABLE pace (
  class    TEXT PRIMARY KEY,
  revision TEXT NOT NULL,
  began    TEXT NOT NULL,
  at       TEXT NOT NULL,
  last     TEXT NOT NULL CHECK (json_valid(last)),
  done     INTEGER NOT NULL,
  waiting  INTEGER NOT NULL,
  stopped  INTEGER NOT NULL CHECK (stopped IN (0, 1))
) STRICT;
CREATE TABLE archive (
  file       TEXT PRIMARY KEY,
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  namespace  TEXT NOT NULL,
  generation INTEGER NOT NULL,   -- of the account then: an archive of an earlier suspension is none of the present one
  digest     TEXT NOT NULL,      -- SHA-256 of the file
  bytes      INTEGER NOT NULL,
  objects    INTEGER NOT NULL,   -- in the file, Secrets included
  secrets    INTEGER NOT NULL,   -- of them, encrypted
  left_out   INTEGER NOT NULL,   -- Secrets that are not in the file, for there was no recipient
  at         TEXT NOT NULL
) STRICT;
INSERT INTO archive VALUES('tool-foo.prod-2026-05-11T090000Z.tar.zst','id-foo','prod','tool-foo',1,'5f2e8c1d5f2e8c1d5f2e8c1d5f2e8c1d5f2e8c1d5f2e8c1d5f2e8c1d5f2e8c1d',14230,23,2,0,'2026-05-11T09:00:00Z');
CREATE TABLE bulk_revocation (
  class TEXT PRIMARY KEY,
  at    TEXT NOT NULL,      -- when the newest were revoked
  last  TEXT NOT NULL CHECK (json_valid(last)),
  done  INTEGER NOT NULL,
  note  TEXT NOT NULL CHECK (json_valid(note))
) STRICT;
CREATE TABLE last_use (
  account_id TEXT PRIMARY KEY REFERENCES account,
  at         TEXT NOT NULL
) STRICT;
INSERT INTO last_use VALUES('id-carol','2026-05-30T07:00:00Z');
CREATE TABLE idleness (
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  since      TEXT NOT NULL,
  counted_at TEXT NOT NULL,
  seconds    INTEGER NOT NULL,
  due        TEXT NOT NULL,
  warned_at  TEXT,
  PRIMARY KEY (account_id, cluster)
) STRICT, WITHOUT ROWID;
INSERT INTO idleness VALUES('id-old','prod','2026-05-02T06:00:00Z','2026-05-30T06:00:00Z',2419200,'2026-06-01T06:00:00Z','2026-05-25T06:00:00Z');
CREATE TABLE former_entry (
  directory_id TEXT NOT NULL,
  source       TEXT NOT NULL,
  account_id   TEXT NOT NULL REFERENCES account,
  PRIMARY KEY (directory_id, source)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS "delivery" (
  account_id TEXT NOT NULL REFERENCES account,
  cluster    TEXT NOT NULL,
  host       TEXT NOT NULL DEFAULT '',
  path       TEXT NOT NULL,
  home       TEXT,   -- the folder that it is in as in a home, where that is not the account's own
  digest     TEXT NOT NULL,
  at         TEXT NOT NULL,
  checked_at TEXT,
  PRIMARY KEY (account_id, cluster, host)
) STRICT;
INSERT INTO delivery VALUES('id-foo','prod','','/data/project/foo/.kube/config',NULL,'d','2026-05-29T08:00:00Z',NULL);
CREATE TABLE ssh_delivery (
  account_id TEXT PRIMARY KEY REFERENCES account,
  path       TEXT NOT NULL,   -- the file
  home       TEXT NOT NULL,   -- the home that it is in
  digest     TEXT NOT NULL,   -- hex SHA-256 of the lines
  at         TEXT NOT NULL,
  checked_at TEXT
) STRICT;
INSERT INTO ssh_delivery VALUES('id-foo','/data/project/foo/.ssh/authorized_keys','/data/project/foo','d','2026-05-29T08:00:00Z',NULL);
CREATE TABLE person (
  account_id TEXT PRIMARY KEY REFERENCES account,
  value      TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE adopted_namespace (
  cluster    TEXT NOT NULL,
  namespace  TEXT NOT NULL,
  uid        TEXT NOT NULL,
  class      TEXT NOT NULL,
  owner      TEXT,                                -- what its annotation says
  named      TEXT REFERENCES account,             -- the account that the annotation named when it was first read
  account_id TEXT REFERENCES account,             -- whose it is
  why        TEXT,                                -- why it is nobody's
  since      TEXT NOT NULL,
  PRIMARY KEY (cluster, namespace)
) STRICT, WITHOUT ROWID;
CREATE TABLE adopted_before (
  cluster    TEXT NOT NULL,
  namespace  TEXT NOT NULL,
  account_id TEXT NOT NULL REFERENCES account,
  at_start   TEXT NOT NULL,
  at_end     TEXT NOT NULL
) STRICT;
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
INSERT INTO realm_account VALUES('id-alice','research','2b0e1c52-61f7-4d0a-9f4e-0d5c3a9b7e11',1777622400000,0,'alice','alice@example.org',NULL,1,1,'2026-05-01T08:00:00Z');
CREATE TABLE source_mark (
  source   TEXT PRIMARY KEY,
  server   TEXT NOT NULL,                          -- that answered last; '': whichever answers next is accepted
  marks    TEXT NOT NULL CHECK (json_valid(marks)),
  at       TEXT NOT NULL,
  moved    TEXT CHECK (json_valid(moved)),         -- another server answers: since when, and which one before
  accepted INTEGER NOT NULL CHECK (accepted IN (0, 1))
) STRICT, WITHOUT ROWID;
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
CREATE TABLE homes_shown (
  source   TEXT NOT NULL,
  kind     TEXT NOT NULL CHECK (kind IN ('tool', 'user', 'group')),
  accounts INTEGER NOT NULL,
  PRIMARY KEY (source, kind)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS "spent" (
  spending TEXT NOT NULL CHECK (spending IN ('suspend', 'disable', 'remove_access', 'delete', 'remove_members',
                                             'realm_disable', 'realm_remove_roles', 'resume')),
  class    TEXT NOT NULL,
  amount   INTEGER NOT NULL,
  at       TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS "order" (
  id         INTEGER PRIMARY KEY,
  account_id TEXT NOT NULL REFERENCES account,
  what       TEXT NOT NULL
             CHECK (what IN ('suspend', 'resume', 'revoke', 'evict', 'adopt uid', 'adopt account', 'adopt object')),
  note       TEXT NOT NULL CHECK (json_valid(note)),
  bulk       TEXT,
  -- KIND NAMESPACE/NAME of an object; of an eviction the time from which on changes are listed, of a suspension its end
  object     TEXT CHECK (what IN ('evict', 'suspend') OR (object IS NOT NULL) = (what = 'adopt object'))
) STRICT;
CREATE INDEX account_named ON account (kind, name);
CREATE UNIQUE INDEX membership_open ON membership (account_id, member) WHERE at_end = '9999-12-31T23:59:59Z';
CREATE INDEX certificate_holder ON certificate (account_id, cluster);
CREATE INDEX event_account ON event (account_id);
CREATE TRIGGER event_continues_the_chain BEFORE INSERT ON event
WHEN NEW.id IS NOT (SELECT coalesce(max(id), 0) + 1 FROM event)
  OR NEW.previous IS NOT coalesce((SELECT hash FROM event ORDER BY id DESC LIMIT 1), printf('%064d', 0))
BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END;
CREATE TRIGGER event_is_never_changed BEFORE UPDATE ON event
BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END;
CREATE TRIGGER event_is_never_removed BEFORE DELETE ON event
BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END;
CREATE VIEW admins AS
SELECT a.name, a.uid, max(a.since, min(t.created_at)) AS since,
       (SELECT min(c.not_after) FROM certificate c WHERE c.account_id = a.id AND c.newest = 1
        AND c.generation = a.generation) AS certificate_until
FROM account a JOIN tenant t ON t.account_id = a.id
WHERE t.namespace IS NULL AND a.state = 'active'
GROUP BY a.id;
CREATE VIEW failing AS
SELECT a.kind || ':' || a.name AS account, f.step, f.reason, f.since, f.attempts, f.next_try
FROM failure f JOIN account a ON a.id = f.account_id
WHERE f.attempts > 0;
CREATE VIEW history AS
SELECT at, actor, account, action, reason, ticket, plan, detail FROM event;
CREATE INDEX archive_of ON archive (account_id);
CREATE VIEW archives AS
SELECT a.kind || ':' || a.name AS account, r.cluster, r.namespace, r.file, r.at, r.objects, r.secrets, r.left_out,
       r.bytes, r.digest
FROM archive r JOIN account a ON a.id = r.account_id;
CREATE INDEX former_entry_of ON former_entry (account_id);
CREATE TRIGGER entry_is_kept AFTER UPDATE ON account
WHEN OLD.directory_id IS NOT NEW.directory_id OR OLD.source IS NOT NEW.source
BEGIN INSERT OR REPLACE INTO former_entry VALUES (OLD.directory_id, OLD.source, OLD.id); END;
CREATE VIEW users AS
SELECT a.id, a.name, a.uid, a.gid, a.home, a.mail, a.state, a.since,
       EXISTS (SELECT 1 FROM tenant t WHERE t.account_id = a.id AND t.namespace IS NULL AND a.state = 'active')
         AS is_admin,
       a.source, a.directory_id,
       (SELECT f.reason FROM failure f WHERE f.account_id = a.id AND f.attempts > 0 ORDER BY f.since DESC LIMIT 1)
         AS last_error,
       (SELECT u.at FROM last_use u WHERE u.account_id = a.id) AS last_use
FROM account a
WHERE a.kind = 'user';
CREATE VIEW idle AS
SELECT a.kind || ':' || a.name AS account, i.cluster, i.since, i.due AS "on", i.warned_at
FROM idleness i JOIN account a ON a.id = i.account_id;
CREATE VIEW expiring_certificates AS
SELECT a.kind || ':' || a.name AS account, c.cluster, c.fingerprint, c.not_after, c.renew_after,
       CASE WHEN c.bound_to IS NULL THEN 'certificate' ELSE 'token' END AS kind, c.host
FROM certificate c JOIN account a ON a.id = c.account_id
WHERE c.newest = 1 AND c.generation = a.generation AND a.state = 'active'
ORDER BY c.not_after;
CREATE INDEX adopted_before_of ON adopted_before (account_id);
CREATE TRIGGER owner_is_kept AFTER UPDATE ON adopted_namespace
WHEN OLD.account_id IS NOT NULL AND OLD.account_id IS NOT NEW.account_id AND OLD.since < NEW.since
BEGIN INSERT INTO adopted_before VALUES (OLD.cluster, OLD.namespace, OLD.account_id, OLD.since, NEW.since); END;
CREATE VIEW namespaces AS
SELECT t.cluster, t.namespace, t.class, a.kind || ':' || a.name AS account, a.uid, a.state, t.created_at
FROM tenant t JOIN account a ON a.id = t.account_id
WHERE t.namespace IS NOT NULL
UNION ALL
SELECT n.cluster, n.namespace, n.class, a.kind || ':' || a.name, a.uid, a.state, n.since
FROM adopted_namespace n JOIN account a ON a.id = n.account_id;
CREATE VIEW quotas AS
SELECT o.namespace, amount.key AS resource, amount.value AS amount, coalesce(n.class, t.class) AS from_class,
       q.note ->> 'ticket' AS override_ticket, q.until AS override_until
FROM object o
JOIN json_each(o.detail) amount
JOIN tenant t ON t.account_id = o.account_id AND t.cluster = o.cluster
LEFT JOIN adopted_namespace n ON n.cluster = o.cluster AND n.namespace = o.namespace
LEFT JOIN quota_override q ON n.class IS NULL AND q.account_id = o.account_id AND q.resource = amount.key
  AND q.amount = amount.value
  AND q.cluster = (SELECT max(c.cluster) FROM quota_override c WHERE c.account_id = o.account_id
                   AND c.resource = amount.key AND c.cluster IN ('', o.cluster))
WHERE o.kind = 'ResourceQuota';
CREATE VIEW realm_users AS
SELECT a.kind || ':' || a.name AS account, r.realm, r.name, r.user_id,
       CASE r.enabled WHEN 1 THEN 'enabled' ELSE 'disabled' END AS state,
       CASE r.adopted WHEN 1 THEN 'adopted' ELSE 'made' END AS origin,
       r.mailed_at
FROM realm_account r JOIN account a ON a.id = r.account_id
WHERE r.user_id IS NOT NULL;
CREATE INDEX spent_at ON spent (at);
CREATE INDEX account_entry ON account (directory_id);
CREATE VIEW membership_named AS
SELECT ms.account_id, ms.role, ms.at_start, ms.at_end, ms.leaving_since,
       coalesce(m.kind || ':' || m.name, f.kind || ':' || f.name,
                (SELECT min(e.kind || ':' || e.name) FROM account e
                 WHERE a.sid IS NOT NULL AND e.sid IS NOT NULL AND e.directory_id = ms.member HAVING count(*) = 1),
                ms.member) AS member
FROM membership ms
JOIN account a ON a.id = ms.account_id
LEFT JOIN account m ON m.source = a.source AND m.directory_id = ms.member
LEFT JOIN former_entry fe ON m.id IS NULL AND fe.directory_id = ms.member
  AND fe.source IN (SELECT a.source UNION ALL SELECT own.source FROM former_entry own WHERE own.account_id = a.id)
LEFT JOIN account f ON f.id = fe.account_id;
CREATE VIEW memberships AS
SELECT a.kind || ':' || a.name AS account, ms.member, ms.role, ms.at_start AS since
FROM membership_named ms JOIN account a ON a.id = ms.account_id
WHERE ms.at_end = '9999-12-31T23:59:59Z';
CREATE VIEW pending_removals AS
SELECT a.kind || ':' || a.name AS account, 'suspend' AS what, a.absence ->> 'since' AS absent_since,
       a.absence ->> 'due' AS "on"
FROM account a
WHERE a.state = 'active' AND (a.absence IS NOT NULL OR a.disabled IS NOT NULL)
UNION ALL
SELECT a.kind || ':' || a.name, CASE a.state WHEN 'suspended' THEN 'archive' ELSE 'delete' END,
       coalesce(a.absence ->> 'since', a.ending ->> 'since'), a.ending ->> 'due'
FROM account a
WHERE a.state IN ('suspended', 'archived') AND a.ending ->> 'ending' = 'waits'
UNION ALL
SELECT a.kind || ':' || a.name, 'remove ' || ms.member, ms.leaving_since, ms.leaving_since
FROM membership_named ms JOIN account a ON a.id = ms.account_id
WHERE ms.leaving_since IS NOT NULL AND ms.at_end = '9999-12-31T23:59:59Z';
CREATE VIEW access_on AS
WITH named AS (
  SELECT account_id, name, at_end,
         CASE at_end WHEN '9999-12-31T23:59:59Z' THEN '' ELSE at_start END AS at_start
  FROM account_name
), owned AS (
  SELECT account_id, namespace, created_at AS at_start, '9999-12-31T23:59:59Z' AS at_end FROM tenant
  UNION ALL
  SELECT account_id, namespace, since, '9999-12-31T23:59:59Z' FROM adopted_namespace WHERE account_id IS NOT NULL
  UNION ALL
  SELECT account_id, namespace, at_start, at_end FROM adopted_before
)
SELECT a.kind || ':' || n.name AS account, ms.member, t.namespace, ms.role,
       max(ms.at_start, ac.at_start, t.created_at, n.at_start) AS at_start,
       min(ms.at_end, ac.at_end, n.at_end) AS at_end
FROM membership_named ms
JOIN account a ON a.id = ms.account_id
JOIN named n ON n.account_id = a.id
JOIN tenant t ON t.account_id = a.id
JOIN activity ac ON ac.account_id = a.id
WHERE max(ms.at_start, ac.at_start, t.created_at, n.at_start) < min(ms.at_end, ac.at_end, n.at_end)
UNION
SELECT a.kind || ':' || n.name, a.kind || ':' || n.name, o.namespace, 'owner',
       max(ac.at_start, o.at_start, n.at_start), min(ac.at_end, o.at_end, n.at_end)
FROM account a
JOIN named n ON n.account_id = a.id
JOIN owned o ON o.account_id = a.id
JOIN activity ac ON ac.account_id = a.id
WHERE a.kind = 'user' AND max(ac.at_start, o.at_start, n.at_start) < min(ac.at_end, o.at_end, n.at_end);
CREATE VIEW tools AS
SELECT a.id, a.name, a.uid, a.gid, a.home,
       (SELECT min(t.namespace) FROM tenant t WHERE t.account_id = a.id) AS namespace,
       a.state, a.since, a.generation,
       (SELECT min(c.not_after) FROM certificate c WHERE c.account_id = a.id AND c.newest = 1
        AND c.generation = a.generation AND a.state = 'active') AS certificate_until,
       (SELECT max(d.at) FROM delivery d WHERE d.account_id = a.id AND d.digest NOT LIKE 'notice:%') AS delivered_at,
       a.source, a.directory_id,
       (SELECT f.reason FROM failure f WHERE f.account_id = a.id AND f.attempts > 0 ORDER BY f.since DESC LIMIT 1)
         AS last_error,
       (SELECT u.at FROM last_use u WHERE u.account_id = a.id) AS last_use
FROM account a
WHERE a.kind = 'tool';
COMMIT;
