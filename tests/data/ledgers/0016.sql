INSERT INTO _sqlx_migrations VALUES(16,'suspensions with an end','2026-11-22 22:01:52',1,X'e04e64e06fe56710c25dff6f5522a84bb5fe45fa340954d4eb786d4236b62c3467998d587d1e86a0d7fbda9f198ed510',0);
