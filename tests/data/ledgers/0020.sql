INSERT INTO _sqlx_migrations VALUES(20,'access of suspended members','2026-11-23 15:10:00',1,X'5070039a9f0027af0eda862f6975a51aefb723bf544d3334e1b9d6280c30edec03622c87848d0df03d9fcc19c8df7000',0);
