INSERT INTO _sqlx_migrations VALUES(15,'uids of workspaces','2026-11-22 22:01:07',1,X'a1c40d198aa523ebd2d9a054dd0ed1b0aad2d60b6e455bc5cf7e340f63aa0e5e869c6af2b5134ec9f57d3eb1809cd97c',0);
INSERT INTO used_uid VALUES(60001,'2026-05-01T08:00:00Z');
UPDATE ledger SET older_than_rules = 0;
