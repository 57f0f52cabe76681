INSERT INTO _sqlx_migrations VALUES(14,'evictions rules and forests','2026-11-22 19:29:25',1,X'9c8ef00e8b60f86c364f78595e30036c056a86b3e8f3439fc2087d0322afe3b41848e8d8f21e5a140573bfe409ccdc5f',0);
