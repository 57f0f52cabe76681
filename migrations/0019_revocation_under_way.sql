-- Accounts that were revoked before the newest and were not done when those were revoked.
ALTER TABLE bulk_revocation ADD COLUMN earlier TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(earlier));
