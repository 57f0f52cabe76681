INSERT INTO _sqlx_migrations VALUES(3,'archive','2026-11-21 15:29:33',1,X'269647eca3cf178a0927168919a6464af896e9db16fbff08e2b48f01655cd44a216a118d44437f7d388c96dfc5874902',0);
INSERT INTO archive VALUES('tool-foo.prod-2026-05-11T090000Z.tar.zst','id-foo','prod','tool-foo',1,'5f2e8c1d5f2e8c1d5f2e8c1d5f2e8c1d5f2e8c1d5f2e8c1d5f2e8c1d5f2e8c1d',14230,23,2,0,'2026-05-11T09:00:00Z');
