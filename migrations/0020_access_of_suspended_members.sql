-- A suspended person has no access to a workspace: it names only people who work. `member_id`: the person's account.
DROP VIEW membership_named;
CREATE VIEW membership_named AS
SELECT ms.account_id, ms.role, ms.at_start, ms.at_end, ms.leaving_since,
       coalesce(m.kind || ':' || m.name, f.kind || ':' || f.name, e.kind || ':' || e.name, ms.member) AS member,
       coalesce(m.id, f.id, e.id) AS member_id
FROM membership ms
JOIN account a ON a.id = ms.account_id
LEFT JOIN account m ON m.source = a.source AND m.directory_id = ms.member
LEFT JOIN former_entry fe ON m.id IS NULL AND fe.directory_id = ms.member
  AND fe.source IN (SELECT a.source UNION ALL SELECT own.source FROM former_entry own WHERE own.account_id = a.id)
LEFT JOIN account f ON f.id = fe.account_id
LEFT JOIN account e ON m.id IS NULL AND f.id IS NULL AND a.sid IS NOT NULL
  AND e.id = (SELECT min(other.id) FROM account other
              WHERE other.sid IS NOT NULL AND other.directory_id = ms.member HAVING count(*) = 1);

DROP VIEW access_on;
CREATE VIEW access_on AS
WITH named AS (
  SELECT account_id, name, at_end,
         CASE at_end WHEN '9999-12-31T23:59:59Z' THEN '' ELSE at_start END AS at_start
  FROM account_name
), owned AS (
  SELECT account_id, namespace, created_at AS at_start, '9999-12-31T23:59:59Z' AS at_end FROM tenant
  UNION ALL
  SELECT account_id, namespace, since, '9999-12-31T23:59:59Z' FROM adopted_namespace WHERE account_id IS NOT NULL
  UNION ALL
  SELECT account_id, namespace, at_start, at_end FROM adopted_before
), works AS (
  SELECT ms.account_id, ms.member, ms.role, ms.at_start, ms.at_end
  FROM membership_named ms JOIN account a ON a.id = ms.account_id WHERE a.kind <> 'group'
  UNION ALL
  SELECT ms.account_id, ms.member, ms.role, max(ms.at_start, ac.at_start), min(ms.at_end, ac.at_end)
  FROM membership_named ms JOIN account a ON a.id = ms.account_id JOIN activity ac ON ac.account_id = ms.member_id
  WHERE a.kind = 'group'
)
SELECT a.kind || ':' || n.name AS account, w.member, t.namespace, w.role,
       max(w.at_start, ac.at_start, t.created_at, n.at_start) AS at_start,
       min(w.at_end, ac.at_end, n.at_end) AS at_end
FROM works w
JOIN account a ON a.id = w.account_id
JOIN named n ON n.account_id = a.id
JOIN tenant t ON t.account_id = a.id
JOIN activity ac ON ac.account_id = a.id
WHERE max(w.at_start, ac.at_start, t.created_at, n.at_start) < min(w.at_end, ac.at_end, n.at_end)
UNION
SELECT a.kind || ':' || n.name, a.kind || ':' || n.name, o.namespace, 'owner',
       max(ac.at_start, o.at_start, n.at_start), min(ac.at_end, o.at_end, n.at_end)
FROM account a
JOIN named n ON n.account_id = a.id
JOIN owned o ON o.account_id = a.id
JOIN activity ac ON ac.account_id = a.id
WHERE a.kind = 'user' AND max(ac.at_start, o.at_start, n.at_start) < min(ac.at_end, o.at_end, n.at_end);
