-- The highest generation that this ledger may have written to the mark of each cluster. The last generation of the ledger
-- cannot tell whether the ledger was rolled back, because new accounts and orders raise it.
CREATE TABLE cluster_mark (
  cluster    TEXT PRIMARY KEY NOT NULL,
  generation INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO cluster_mark (cluster, generation)
  SELECT DISTINCT tenant.cluster, ledger.last_generation FROM tenant, ledger;
