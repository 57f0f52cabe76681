INSERT INTO _sqlx_migrations VALUES(18,'former dns','2026-11-23 08:40:00',1,X'8e20f3f09c61011939b6e0ffb7ef2a46e53761d052821d152c32da4bec0b52ea7b3a713a29a6c0732d73535d0d0b9ce5',0);
UPDATE account SET former_dns = '{"uid=old-ann,ou=people,dc=x":"2026-05-01T08:00:00Z"}' WHERE id = (SELECT min(id) FROM account WHERE kind = 'user');
