-- Whether the ledger is older than the rules that the API server evaluates (services, scheduling, sysctls): there they
-- audit until an administrator chooses. A ledger that is made now has no row yet.
ALTER TABLE ledger ADD COLUMN older_than_rules INTEGER NOT NULL DEFAULT 0 CHECK (older_than_rules IN (0, 1));
UPDATE ledger SET older_than_rules = 1;
