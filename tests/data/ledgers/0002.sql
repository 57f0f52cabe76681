INSERT INTO _sqlx_migrations VALUES(2,'quota and pace','2026-11-21 11:57:31',1,X'64365991db26aa487d9dffd39ad0052201085ab5dddbe647ac414f6717cd17a364b94e0c8fb5c30826786019ae873e78',0);
INSERT INTO quota_override VALUES('id-foo','pods','','16','2027-01-01T00:00:00Z','{"actor":"carol","at":"2026-05-01T08:00:00Z","reason":"a course","ticket":"T123"}');
