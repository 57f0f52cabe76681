INSERT INTO _sqlx_migrations VALUES(22,'cluster marks','2026-11-23 21:50:00',1,X'4cdb9722a253798f9b16e10b43754c45065496b433fb4cf7cd26fe349633483ebc058eb75a14e8a4119fb98098fbc6ee',0);
UPDATE cluster_mark SET generation = 1041;
