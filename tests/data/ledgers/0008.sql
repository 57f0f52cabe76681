INSERT INTO _sqlx_migrations VALUES(8,'ssh keys','2026-11-21 21:32:44',1,X'6075be771407e8e3971ac4ac28fd338c05862a8ceea9274629ca0b23f860b982e3619004ffd40e5d0b79e783e7885e60',0);
UPDATE account SET ssh_keys = '["ssh-ed25519 AAAA web"]' WHERE id = 'id-foo';
INSERT INTO ssh_delivery VALUES('id-foo','/data/project/foo/.ssh/authorized_keys','/data/project/foo','d','2026-05-29T08:00:00Z',NULL);
