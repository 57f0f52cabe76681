INSERT INTO _sqlx_migrations VALUES(4,'pace and use','2026-11-21 15:43:05',1,X'abd1d191e0ade911fe3aa94b0e6cbcfa7f5e6b45e15caf5dc05768eb6e6770b5860c519b1f13ef6fb49bc4ad84896188',0);
