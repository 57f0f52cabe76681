-- The end of an override counts proved time, as absences do. What was given before counts from now on.
ALTER TABLE quota_override ADD COLUMN proved TEXT CHECK (json_valid(proved));
UPDATE quota_override SET proved = json_object(
  'counted_at', strftime('%Y-%m-%dT%H:%M:%SZ', 'now'),
  'seconds', max(0, unixepoch('now') - unixepoch(note ->> 'at')))
WHERE until <> '9999-12-31T23:59:59Z';
