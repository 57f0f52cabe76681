CREATE TABLE _sqlx_migrations (
    version BIGINT PRIMARY KEY,
    description TEXT NOT NULL,
    installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    success BOOLEAN NOT NULL,
    checksum BLOB NOT NULL,
    execution_time BIGINT NOT NULL
);
INSERT INTO _sqlx_migrations VALUES(1,'ledger','2026-11-21 10:54:40',1,X'5beeccece393ceb890914dfa85a43fd2135c2c6f4610aff452357826b6730a0fc93ed81bfeea6a89674e79824237f397',0);
INSERT INTO ledger VALUES(1,'29d0550dc49fd463ede5593f8ebb134b',0);
INSERT INTO account VALUES('id-alice','user','alice','alice','people','entry-alice','cn=alice',3001,3001,'[]','/data/project/alice','alice@example.org',NULL,NULL,NULL,'new','2026-05-01T08:00:00Z',NULL,0,NULL);
INSERT INTO account VALUES('id-bob','user','bob','bob','people','entry-bob','cn=bob',3002,3002,'[]','/data/project/bob',NULL,NULL,NULL,NULL,'new','2026-05-01T08:00:00Z',NULL,0,NULL);
INSERT INTO account VALUES('id-carol','user','carol','carol','people','entry-carol','cn=carol',3003,3003,'[]','/data/project/carol',NULL,NULL,NULL,NULL,'active','2026-05-01T08:00:00Z',NULL,1,NULL);
INSERT INTO account VALUES('id-foo','tool','web','foo','people','entry-foo','cn=foo',52503,52503,'[]','/data/project/foo',NULL,NULL,NULL,NULL,'active','2026-05-12T09:00:00Z',NULL,2,NULL);
INSERT INTO account VALUES('id-old','tool','old','old','people','entry-old','cn=old',52504,52504,'[]','/data/project/old',NULL,NULL,NULL,'{"counted_at":"2026-05-31T20:00:00Z","due":"2026-06-01T20:00:00Z","seconds":0,"since":"2026-05-31T20:00:00Z"}','active','2026-05-01T08:00:00Z',NULL,1,NULL);
INSERT INTO account_name VALUES('id-alice','alice','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO account_name VALUES('id-bob','bob','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO account_name VALUES('id-carol','carol','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO account_name VALUES('id-foo','foo','2026-05-01T08:00:00Z','2026-05-20T08:00:00Z');
INSERT INTO account_name VALUES('id-old','old','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO account_name VALUES('id-foo','web','2026-05-20T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO membership VALUES('id-foo','entry-alice','member',NULL,'2026-05-01T08:00:00Z','2026-05-25T08:00:00Z');
INSERT INTO membership VALUES('id-old','entry-bob','member','2026-05-31T22:00:00Z','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO membership VALUES('id-foo','entry-bob','member',NULL,'2026-05-05T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO activity VALUES('id-carol','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO activity VALUES('id-foo','2026-05-01T08:00:00Z','2026-05-10T09:00:00Z');
INSERT INTO activity VALUES('id-old','2026-05-01T08:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO activity VALUES('id-foo','2026-05-12T09:00:00Z','9999-12-31T23:59:59Z');
INSERT INTO uid_history VALUES(3001,'id-alice');
INSERT INTO uid_history VALUES(3002,'id-bob');
INSERT INTO uid_history VALUES(3003,'id-carol');
INSERT INTO uid_history VALUES(52503,'id-foo');
INSERT INTO uid_history VALUES(52504,'id-old');
INSERT INTO tenant VALUES('id-carol','prod','admin',NULL,'2026-05-01T08:00:00Z');
INSERT INTO tenant VALUES('id-foo','prod','tool','tool-foo','2026-05-01T08:00:00Z');
INSERT INTO tenant VALUES('id-old','prod','tool','tool-old','2026-05-01T08:00:00Z');
INSERT INTO object VALUES('prod','v1','ResourceQuota','tool-foo','bursar','id-foo','u','w','o','{"limits.memory":"8Gi","pods":"16"}');
INSERT INTO object VALUES('prod','v1','ResourceQuota','tool-old','bursar','id-old','u','w','o','{"limits.memory":"8Gi","pods":"16"}');
INSERT INTO certificate VALUES('11aa22bb11aa22bb11aa22bb11aa22bb11aa22bb11aa22bb11aa22bb11aa22bb','id-carol','prod',1,'user:carol','2026-05-29T08:00:00Z','2026-06-06T08:00:00Z','2026-06-03T18:00:00Z',1);
INSERT INTO certificate VALUES('9a19ac7c9a19ac7c9a19ac7c9a19ac7c9a19ac7c9a19ac7c9a19ac7c9a19ac7c','id-foo','prod',2,'tool:web','2026-05-29T08:00:00Z','2026-06-05T08:00:00Z','2026-06-02T18:00:00Z',1);
INSERT INTO delivery VALUES('id-foo','prod','/data/project/foo/.kube/config','d','2026-05-29T08:00:00Z',NULL);
INSERT INTO failure VALUES('id-old','prod','home','the disk quota is used up','2026-05-31T21:00:00Z',4,'2026-06-01T01:00:00Z');
INSERT INTO event VALUES(1,'2026-05-01T08:00:00Z','bursar','tool:foo','id-foo','created','new',NULL,NULL,'{}','0000000000000000000000000000000000000000000000000000000000000000','27c61201b98ed99782af8343dee2074272a2eaa9bdf167feae0a02a349a00a7f');
INSERT INTO event VALUES(2,'2026-05-10T09:00:00Z','carol','tool:foo','id-foo','suspended','mining','T9',NULL,'{}','27c61201b98ed99782af8343dee2074272a2eaa9bdf167feae0a02a349a00a7f','7bf440718a19e509af69e0c286768969a76c18ecff9ab1dfaa744e92c1b1f41c');
INSERT INTO event VALUES(3,'2026-05-12T09:00:00Z','carol','tool:foo','id-foo','resumed','talked to them','T9',NULL,'{}','7bf440718a19e509af69e0c286768969a76c18ecff9ab1dfaa744e92c1b1f41c','a21b8a02eb5e8afe9476e48558f7216f8f51388757ac15a8bc171be5c5d9e6c1');
INSERT INTO event VALUES(4,'2026-05-20T08:00:00Z','bursar','tool:web','id-foo','renamed','renamed in the directory',NULL,NULL,'{}','a21b8a02eb5e8afe9476e48558f7216f8f51388757ac15a8bc171be5c5d9e6c1','6a0eda5c07ad0660c0d7e1a13ffc0c0521fa26b26f8ae428f8d393c272468cd9');
