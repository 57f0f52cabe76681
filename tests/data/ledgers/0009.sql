INSERT INTO _sqlx_migrations VALUES(9,'adopted namespaces and realm','2026-11-21 21:35:17',1,X'86a1b30718a33574e462e26b2ee8ea71f65e0acce16954d76e0746eaf11cc5854873f08335ab2b03527c4707397fa790',0);
INSERT INTO realm_account VALUES('id-alice','research','2b0e1c52-61f7-4d0a-9f4e-0d5c3a9b7e11',1777622400000,0,'alice','alice@example.org',NULL,1,1,'2026-05-01T08:00:00Z');
