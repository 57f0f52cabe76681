INSERT INTO _sqlx_migrations VALUES(13,'proved overrides','2026-11-22 15:36:13',1,X'17e5279d72b70706087838353140273dd388af2b6199edbae5391ae2cfc99aa452623c6e7b35f9211b24f40be66c0965',0);
INSERT INTO quota_override VALUES('id-foo','limits.cpu','','4','2027-01-01T00:00:00Z','{"actor":"carol","at":"2026-05-01T08:00:00Z","reason":"a course","ticket":"T123"}',NULL);
