INSERT INTO _sqlx_migrations VALUES(7,'adopted objects','2026-11-21 18:25:53',1,X'7c3bcfa9875fcbbfc6b85511d7663e744dc8e648fddd8aada464b60098166b8843d7a0e003953a8ac4c97b7ff74863f0',0);
