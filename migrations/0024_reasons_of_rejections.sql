-- Orders to adopt a uid or an account need the reason of a rejection. The next read of a source records it.
ALTER TABLE rejected_entry ADD COLUMN reason TEXT CHECK (reason IS NULL OR json_valid(reason));
