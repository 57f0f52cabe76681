INSERT INTO _sqlx_migrations VALUES(25,'requested certificates','2026-11-24 02:50:00',1,X'1d12189e03d3e80504c1d78a52f80d450b190065454fbf9c02f4def3a87427d7cf74cc90a80e85830c201706d54d2118',0);
INSERT INTO requested_certificate SELECT account_id, cluster, host, 'aa' FROM delivery;
INSERT INTO unknown_certificate VALUES('prod','ff','CN=mallory','2026-11-24T02:00:00Z','2027-11-24T02:00:00Z');
