INSERT INTO _sqlx_migrations VALUES(19,'revocation under way','2026-11-23 15:00:00',1,X'a40c34d7a1c43000efc5598fa195d35575ce82be55bbb9e399c04e22c5a95e6cd7614556c9f8d9f31025e1d0f7528cc1',0);
INSERT INTO bulk_revocation (class, at, last, done, note, earlier)
SELECT 'tool', '2026-05-03T08:00:00Z', '[]', 1, '{"actor":"ann","reason":"stolen","ticket":null,"at":"2026-05-03T08:00:00Z"}', json_array(min(id)) FROM account;
