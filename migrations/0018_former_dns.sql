-- Where an account was before, in a forest: another domain calls it by the old DN until it has heard of the new one.
ALTER TABLE account ADD COLUMN former_dns TEXT CHECK (json_valid(former_dns));
