INSERT INTO _sqlx_migrations VALUES(21,'mounts of homes','2026-11-23 15:20:00',1,X'04c234b3d934a25887132207b3bfe708c2d8cdec0af1673bc01451c569906516f85dc3a66bdef2ebcaa065f2404b9388',0);
UPDATE delivery SET mount = '/data/project';
UPDATE ssh_delivery SET mount = '/home';
