INSERT INTO _sqlx_migrations VALUES(17,'exceptions','2026-11-23 02:14:28',1,X'248bc76e1290911cc5a87361d745802dd1b757eb7ea7695c6aaf9b42273b5f3cbab14d6068486c78ebf4d431c860275e',0);
INSERT INTO exception VALUES('id-foo','images','','2026-09-01T00:00:00Z','{"actor":"carol","at":"2026-05-01T08:00:00Z","reason":"a course","ticket":"T124"}',NULL);
